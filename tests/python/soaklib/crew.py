"""The workers as their parent sees them: it starts, kills, replaces and stops them, and detects hangs.

Only the parent reaps workers. It clears a worker's id on the board first (see board).
"""

import collections
import os
import signal
import time

from soaklib import board as fields
from soaklib import processes, roles, worker
from soaklib.content import Wrong

# A worker without a sign of life for this many seconds hangs.
HANG = 30
# How many workers are stopped at a time.
STOPPED = 2
GONE_LIMIT = 60


class Crew:
    def __init__(self, stage, random):
        self.stage, self.random, self.board = stage, random, stage.board
        self.generations = collections.Counter()
        self.stopped = {}
        # The last sign of life of each worker, and for how long both it and the parent have run since.
        self.beats, self.quiet = {}, collections.Counter()
        self.ended = collections.Counter()
        self.stops = 0
        self.reader, self.failures = os.pipe2(os.O_NONBLOCK)
        self.said = b""

    def start_all(self):
        for number in range(self.board.slots):
            self.start(number)

    def start(self, number):
        self.generations[number] += 1
        self.board.beat(number)
        pid = worker.start(self.stage, number, self.generations[number], self.failures)
        self.board.set(number, fields.PID, pid)

    def living(self):
        return [number for number in range(self.board.slots) if self.board.get(number, fields.PID)]

    def tend(self, step):
        """Replaces killed workers, stops and continues some. Raises if one failed or hangs."""
        for number in self.living():
            if self.reap(number):
                self.start(number)
        self.listen()
        self.stop_some()
        self.look_for_hangs(step)

    def reap(self, number):
        """Whether that worker has exited. SIGKILL is expected, as long as it recorded no failure."""
        pid = self.board.get(number, fields.PID)
        if not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        self.board.set(number, fields.PID, 0)
        self.stopped.pop(number, None)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.ended[code] += 1
        if code not in (-signal.SIGKILL, 0):
            self.listen()
            role = roles.NAMES[self.board.get(number, fields.ROLE)]
            raise Wrong(f"worker {number} ended with {code} as {role}")
        return True

    def listen(self):
        try:
            while piece := os.read(self.reader, 65536):
                self.said += piece
        except BlockingIOError:
            pass
        *told, self.said = self.said.split(b"\0")
        if told:
            raise Wrong("\n".join(text.decode(errors="replace") for text in told[:3]))

    def stop_some(self):
        now = time.monotonic()
        for number, until in list(self.stopped.items()):
            if now >= until:
                del self.stopped[number]
                self.signal(number, signal.SIGCONT)
        if len(self.stopped) < STOPPED and self.random.random() < 0.1:
            number = self.random.choice(self.living())
            if number not in self.stopped:
                self.stopped[number] = now + self.random.uniform(0.05, 3)
                self.stops += 1
                self.signal(number, signal.SIGSTOP)

    def signal(self, number, what):
        """Signals a child that has not been reaped, so no other process can have its id."""
        os.kill(self.board.get(number, fields.PID), what)

    def look_for_hangs(self, step):
        for number in self.living():
            beat = self.board.get(number, fields.BEAT)
            if beat != self.beats.get(number):
                self.beats[number], self.quiet[number] = beat, 0
            elif number not in self.stopped:
                self.quiet[number] += step
            if self.quiet[number] > HANG:
                role = roles.NAMES[self.board.get(number, fields.ROLE)]
                raise Wrong("\n".join([f"worker {number} hangs as {role}: nothing for {HANG} s",
                                       processes.stacks(self.board.get(number, fields.PID)),
                                       *self.stage.stacks_of_daemons()]))

    def end(self):
        """Tells all workers to end, and waits."""
        self.board.end()
        deadline = time.monotonic() + GONE_LIMIT
        while living := self.living():
            for number in list(self.stopped):
                del self.stopped[number]
                self.signal(number, signal.SIGCONT)
            for number in living:
                self.reap(number)
            self.listen()
            if time.monotonic() > deadline:
                raise Wrong("\n".join([f"{len(living)} workers do not end",
                                       processes.stacks(self.board.get(living[0], fields.PID)),
                                       *self.stage.stacks_of_daemons()]))
            time.sleep(0.02)
        if self.killed() > self.sent():
            raise Wrong(f"{self.killed()} workers were killed, but only {self.sent()} by each other")

    def killed(self):
        return self.ended[-signal.SIGKILL]

    def sent(self):
        return self.board.total(fields.SENT)

    def kill_all(self):
        """Kills all workers. One that waits for a request ends only after the daemon."""
        self.board.end()
        for number in self.living():
            self.signal(number, signal.SIGKILL)

    def reap_all(self):
        for number in self.living():
            pid = self.board.get(number, fields.PID)
            self.board.set(number, fields.PID, 0)
            os.waitpid(pid, 0)
