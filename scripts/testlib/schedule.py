"""Runs parts in lanes side by side, then the others alone.

The front lane has the parts that mostly wait, and those with short time limits. The back lane has builds, computation
and other tests, at a low priority: it uses the CPU time that the front lane leaves. Downloads have a lane of their own,
because they use the network and little CPU time. A part starts when the parts that it needs have succeeded. What depends
on the speed, the memory or the page cache of the machine runs alone, after all lanes.
"""

import dataclasses
import enum
import os
import signal
import subprocess
import sys
import threading
import time

# The exit status of a part that cannot run on this machine.
CANNOT_RUN = 77
# How long to wait for parts that a signal ends, in seconds. A Slurm cancels its jobs first.
STOP_LIMIT = 60
# Of parts in the back lane. scripts/test-programs gives its own computation the same.
LOW_PRIORITY = 10


class Lane(enum.Enum):
    FRONT = "front"
    BACK = "back"
    DOWNLOAD = "download"
    ALONE = "alone"


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    # The command of the short form and of the long form. A part without a short form runs only in the long form.
    short: tuple = ()
    long: tuple = ()
    lane: Lane = Lane.FRONT
    # Names of parts, which have to succeed first. They come earlier in the list of parts.
    needs: tuple = ()
    # What cannot be tested where the part cannot run. Without it, the exit status 77 is a failure.
    lack: str = ""

    def command(self, is_long):
        return self.long or self.short if is_long else self.short


@dataclasses.dataclass
class Result:
    part: Part
    status: int
    output: str
    # Time from start to end, and CPU time of the processes that it waited for, in seconds.
    elapsed: float
    cpu: float

    def has_passed(self):
        return self.status == 0 or (self.status == CANNOT_RUN and self.part.lack and "CI" not in os.environ)


class Schedule:
    def __init__(self, parts, is_long, work):
        self.parts = [part for part in parts if part.command(is_long)]
        self.is_long, self.work = is_long, work
        self.results = {}
        self.changed = threading.Condition()
        self.running, self.lanes = {}, []
        self.is_stopped = False

    def run(self):
        try:
            beside = [lane for lane in Lane if lane != Lane.ALONE]
            self.lanes = [threading.Thread(target=self.run_lane, args=(lane,)) for lane in beside]
            for lane in self.lanes:
                lane.start()
            for lane in self.lanes:
                lane.join()
            self.run_lane(Lane.ALONE)
        finally:
            self.stop()

    def run_lane(self, lane):
        for part in self.parts:
            if part.lane == lane:
                self.run_part(part)

    def run_part(self, part):
        failed = self.wait_for_needs(part)
        if failed:
            text = f"FAILED  {part.name}: not run, because {failed} failed\n"
            result = Result(part, 1, text, 0, 0)
        else:
            try:
                result = self.execute(part)
            except OSError as error:
                result = Result(part, 1, f"FAILED  {part.name}: {error}\n", 0, 0)
        with self.changed:
            self.results[part.name] = result
            self.changed.notify_all()
            # One after the other, so that the output of two parts is not mixed.
            print(f"     Output of {part.name}\n{result.output}     Ran {part.name} in {result.elapsed:.0f} s "
                  f"(CPU {result.cpu:.0f} s), status {result.status}\n", flush=True)

    def wait_for_needs(self, part):
        """The name of a needed part that failed."""
        names = {other.name for other in self.parts}
        needed = [name for name in part.needs if name in names]
        with self.changed:
            self.changed.wait_for(lambda: self.is_stopped or all(name in self.results for name in needed))
            if self.is_stopped:
                return "the run"
            return next((name for name in needed if self.results[name].status), None)

    def execute(self, part):
        command = [str(word) for word in part.command(self.is_long)]
        nice = ["nice", "-n", str(LOW_PRIORITY)] if part.lane == Lane.BACK else []
        with self.changed:
            print(f"     Running {part.name}: {' '.join(command)}", flush=True)
        begun = time.monotonic()
        with open(self.work / f"{len(self.results)}-{part.lane.value}", "w+b") as output:
            # In a session of its own, so that all of its processes can be stopped.
            running = subprocess.Popen([*nice, *command], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            self.running[running.pid] = running
            _, status, used = os.wait4(running.pid, 0)
            del self.running[running.pid]
            running.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read().decode(errors="replace")
        return Result(part, running.returncode, text, time.monotonic() - begun, used.ru_utime + used.ru_stime)

    def stop(self):
        """Ends what still runs, after a signal, and waits until it has cleaned up."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()
        for process in list(self.running):
            print(f"test: ending process {process}", file=sys.stderr)
            os.killpg(process, signal.SIGTERM)
        for lane in self.lanes:
            lane.join(STOP_LIMIT)
