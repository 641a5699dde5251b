"""The memory that all processes share: who is alive, what was done, whether it is time to end.

One row a worker's place. Only the worker writes its numbers, which go on where the one before it was
killed; only the parent writes the process id.

A worker may kill another one and must never hit a process that got the same id later. The parent clears
the id of a worker that has ended before it reaps it, and an id is given away only after that. So whoever
has opened a descriptor of the process and then still finds the id on the board has the right one.
"""

import mmap
import os
import signal
import time

# The numbers of a row; those of the roles follow. The last beat is in nanoseconds.
PID, BEAT, ROLE, BYTES, SENT = range(5)
FIRST_ROLE = 5


class Board:
    def __init__(self, places, roles):
        self.places, self.roles = places, roles
        self.row = FIRST_ROLE + len(roles)
        # Written as one store of 8 bytes each, so what is killed meanwhile leaves the old or the new one.
        self.numbers = memoryview(mmap.mmap(-1, 8 * (1 + places * self.row))).cast("q")

    def get(self, place, field):
        return self.numbers[1 + place * self.row + field]

    def set(self, place, field, value):
        self.numbers[1 + place * self.row + field] = value

    def add(self, place, field, value=1):
        self.numbers[1 + place * self.row + field] += value

    def beat(self, place):
        self.set(place, BEAT, time.monotonic_ns())

    def total(self, field):
        return sum(self.get(place, field) for place in range(self.places))

    def is_over(self):
        return self.numbers[0] != 0

    def end(self):
        self.numbers[0] = 1

    def kill(self, victim, sender):
        """SIGKILL to the worker at a place; tells whether there was one."""
        pid = self.get(victim, PID)
        if not pid:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if self.get(victim, PID) != pid:
                return False
            # Counted before, since the sender may be killed as well.
            self.add(sender, SENT)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
