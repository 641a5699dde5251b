"""Other programs that use the mounts. The parent never waits for them during the load.

Other holders share a mount, read a file or wait, and then exit or are killed. `archfs stats` and `archfs
list` also run as programs, because they may be slow on a busy machine.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time

from soaklib import processes
from soaklib.content import Wrong

# How many holders run at a time, and how long each may take, in seconds.
AT_A_TIME = 3
CAT_BYTES = 8 << 20
LIMIT = 60
HOLDERS = {"mount", "run"}
# How long a process that only waits lives if nothing ends it, in seconds.
WAITS = 2 * LIMIT
TICK = 0.02


class Guest:
    """A process, its output, the time to kill it, and the check after its end."""

    def __init__(self, kind, process, output, killed_at=None, then=None):
        self.kind, self.process, self.output, self.then = kind, process, output, then
        self.lasted = 0
        self.killed_at = killed_at
        self.was_killed = False


class Guests:
    def __init__(self, stage, random):
        self.stage, self.random = stage, random
        self.present = []
        self.counts = {"shared": 0, "ran": 0, "killed": 0}

    def tend(self, step):
        for guest in list(self.present):
            self.look_after(guest, step)
        if sum(guest.kind in HOLDERS for guest in self.present) < AT_A_TIME and self.random.random() < 0.1:
            mount = self.random.choice(self.stage.mounts)
            self.random.choice([self.share, self.share, self.run])(mount)

    def share(self, mount):
        """A process holds the mount for a while, through `archfs mount --until-pid`."""
        sleeper = Guest("sleep", *self.start(["sleep", WAITS]))
        stays = self.random.uniform(0, 4)

        def shared(guest):
            # Only now, because mounting for a process that has ended is an error.
            sleeper.killed_at = time.monotonic() + stays
            if guest.was_killed:
                return
            if "sharing" not in read(guest.output):
                raise Wrong(f"a second mount says: {read(guest.output)}")
            self.counts["shared"] += 1

        words = mount.command("mount", f"--until-pid={sleeper.process.pid}")
        self.present += [sleeper, Guest("mount", *self.start(words), self.killed_at(0.05), shared)]

    def run(self, mount):
        """Runs cat under `archfs run`, and compares its output."""
        entry = self.random.choice([entry for entry in mount.view.files if entry.file.size <= CAT_BYTES])
        words = mount.command("run", "--quiet", after=["--", "cat", mount.mount_point / entry.path])

        def ran(guest):
            if not guest.was_killed:
                guest.output.seek(0)
                self.stage.content.compare(entry.file, 0, entry.file.size + 1, guest.output.read())
                self.counts["ran"] += 1

        self.present.append(Guest("run", *self.start(words), self.killed_at(0.5), ran))

    def ask(self, mount):
        """Requests the counters and holders of a mount, unless the previous requests are still running."""
        kinds = [("stats", mount.command_of("stats", "--json", mount.mount_point), mount.take_numbers),
                 ("list", mount.command_of("list", "--json"), mount.take_list)]
        for kind, words, take in kinds:
            name = f"{kind} of {mount.dataset.name}"
            if not any(guest.kind == name for guest in self.present):
                self.present.append(Guest(name, *self.start(words), then=lambda guest, take=take: take(
                    read(guest.output))))

    def killed_at(self, seconds):
        """A third of the guests are killed within this time."""
        return time.monotonic() + self.random.random() * seconds if self.random.random() < 0.3 else None

    def start(self, command):
        """Starts the process, with a file for all of its output."""
        output = tempfile.TemporaryFile(dir=self.stage.work)
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=output, start_new_session=True, env=self.stage.environment)
        return process, output

    def look_after(self, guest, step):
        now = time.monotonic()
        guest.lasted += step
        status = guest.process.poll()
        if status is None:
            if guest.killed_at and now >= guest.killed_at and not guest.was_killed:
                guest.was_killed = True
                # The parent has not reaped it, so the id is the right one.
                guest.process.kill()
                self.counts["killed"] += 1
            elif not guest.killed_at and guest.lasted > LIMIT:
                raise Wrong(f"a second {guest.kind} takes more than {LIMIT} s\n"
                            + processes.stacks(guest.process.pid))
            return
        self.present.remove(guest)
        if status != 0 and not (guest.was_killed and status == -signal.SIGKILL):
            raise Wrong(f"a second {guest.kind} ended with {status}: {read(guest.output)[:500]}")
        if guest.then:
            guest.then(guest)
        guest.output.close()

    def end(self):
        """Waits for all guests. Those that only wait are released first."""
        while self.present:
            for guest in list(self.present):
                self.look_after(guest, TICK)
            time.sleep(TICK)

    def kill_all(self):
        """Each guest has its own session."""
        for guest in self.present:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guest.process.pid, signal.SIGKILL)

    def reap_all(self):
        for guest in self.present:
            guest.process.wait()


def read(output):
    output.seek(0)
    return output.read().decode(errors="replace").strip()
