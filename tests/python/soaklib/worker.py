"""One worker: a process that plays one role after another until it is killed or told to stop."""

import mmap
import os
import random
import signal
import traceback

from soaklib import board as fields
from soaklib import roles
from soaklib.content import BLOCK, UNIT

# Files of at least this size are large.
LARGE = 8 * BLOCK
NICE = 5


class Worker:
    """What the roles use. `dataset` is the mount of the current turn."""

    def __init__(self, stage, number, generation):
        self.stage, self.number, self.board = stage, number, stage.board
        self.random = random.Random(f"worker {stage.seed} {number} {generation}")
        self.scratch = stage.work / f"scratch-{number}"
        self.aligned = mmap.mmap(-1, 1 << 20)
        self.parent = os.getppid()
        # The mount of this turn, and the last path used.
        self.view, self.at = None, ""

    def run(self):
        while not self.is_over():
            self.view = self.random.choice(self.stage.views)
            role = self.random.choices(list(roles.ROLES), roles.ROLES.values())[0]
            self.board.set(self.number, fields.ROLE, roles.NAMES.index(role.__name__))
            self.beat()
            role(self)
            self.board.add(self.number, fields.FIRST_ROLE + roles.NAMES.index(role.__name__))

    def is_over(self):
        # The parent may have been killed.
        return self.board.is_over() or os.getppid() != self.parent

    def beat(self):
        self.board.beat(self.number)

    def compare(self, file, offset, asked, got):
        self.stage.content.compare(file, offset, asked, got)
        self.board.add(self.number, fields.BYTES, len(got))
        self.beat()

    @property
    def entries(self):
        return self.view.entries

    @property
    def directories(self):
        return self.view.directories

    @property
    def children(self):
        return self.view.children

    def path(self, path):
        return f"{self.view.mount_point}/{path}"

    def path_of(self, entry):
        return self.path(entry.path)

    def files(self, count, large=0.1, sparse=0.0):
        """Files in random order, with the given shares of large and sparse ones."""
        found = []
        for _ in range(self.random.randint(1, count)):
            group = self.view.files
            if self.random.random() < large:
                group = self.view.large
            if self.random.random() < sparse:
                group = self.view.sparse
            found.append(self.random.choice(group))
        return found

    def start_of_turn(self, file):
        """The start offset in a file: one turn does not read a large file completely."""
        if file.size < LARGE or self.random.random() < 0.3:
            return 0
        return self.random.randrange(file.size // UNIT) * UNIT


class View:
    """A mounted dataset, sorted into what the roles choose from."""

    def __init__(self, dataset, mount_point):
        self.mount_point, self.entries = mount_point, dataset.entries
        self.files = [entry for entry in self.entries.values() if entry.file]
        self.large = [entry for entry in self.files if entry.file.size >= LARGE]
        self.sparse = [entry for entry in self.files if entry.file.sparse]
        self.children = {"": set()}
        for path in sorted(self.entries):
            directory, _, name = path.rpartition("/")
            self.children.setdefault(directory, set()).add(name)
        self.directories = sorted(self.children)


def start(stage, number, generation, failures):
    """Forks. The child never returns from here; the parent gets its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.nice(NICE)
        worker = Worker(stage, number, generation)
        try:
            worker.run()
            status = 0
        except BaseException as error:
            role = roles.NAMES[stage.board.get(number, fields.ROLE)]
            last = traceback.format_exc(limit=-2)[-1500:]
            text = f"worker {number} as {role}: {error!r}\nlast at {worker.path(worker.at)}\n{last}\0"
            os.write(failures, text.encode(errors="replace"))
    finally:
        os._exit(status)
