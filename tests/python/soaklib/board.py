"""Memory shared by all processes: which workers are alive, their counters, and whether to stop.

Each worker slot has a row. Only the worker writes its counters, which continue after a killed predecessor;
only the parent writes the process id.

A worker may kill another worker, but must never hit a process that later got the same id. The parent clears a
worker's id before it reaps the worker, and the kernel reuses an id only after that. So a worker opens a pidfd
first, and then checks that the id is still on the board.
"""

import mmap
import os
import signal
import time

# The columns of a row; the counters of the roles follow. BEAT, the last sign of life, is in nanoseconds.
PID, BEAT, ROLE, BYTES, SENT = range(5)
FIRST_ROLE = 5


class Board:
    def __init__(self, slots, roles):
        self.slots, self.roles = slots, roles
        self.row = FIRST_ROLE + len(roles)
        # Each value is one 8-byte store, so a killed writer leaves either the old or the new value.
        self.numbers = memoryview(mmap.mmap(-1, 8 * (1 + slots * self.row))).cast("q")

    def get(self, slot, field):
        return self.numbers[1 + slot * self.row + field]

    def set(self, slot, field, value):
        self.numbers[1 + slot * self.row + field] = value

    def add(self, slot, field, value=1):
        self.numbers[1 + slot * self.row + field] += value

    def beat(self, slot):
        self.set(slot, BEAT, time.monotonic_ns())

    def total(self, field):
        return sum(self.get(slot, field) for slot in range(self.slots))

    def is_over(self):
        return self.numbers[0] != 0

    def end(self):
        self.numbers[0] = 1

    def kill(self, victim, sender):
        """Sends SIGKILL to the worker of a slot. Returns whether there was one."""
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
            # Counted first, because the sender may be killed as well.
            self.add(sender, SENT)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
