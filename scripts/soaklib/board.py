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
import struct
import time

HEAD = 64
LONG = struct.Struct("q")
DOUBLE = struct.Struct("d")
# The numbers of a row, each of 8 bytes; those of the roles follow.
PID, BEAT, ROLE, BYTES, SENT = range(5)
FIRST_ROLE = 5


class Board:
    def __init__(self, places, roles):
        self.places, self.roles = places, roles
        self.row_bytes = 8 * (FIRST_ROLE + len(roles))
        self.memory = mmap.mmap(-1, HEAD + places * self.row_bytes)

    def at(self, place, field):
        return HEAD + place * self.row_bytes + 8 * field

    def get(self, place, field):
        return LONG.unpack_from(self.memory, self.at(place, field))[0]

    def set(self, place, field, value):
        LONG.pack_into(self.memory, self.at(place, field), value)

    def add(self, place, field, value=1):
        self.set(place, field, self.get(place, field) + value)

    def beat(self, place):
        DOUBLE.pack_into(self.memory, self.at(place, BEAT), time.monotonic())

    def last_beat(self, place):
        return DOUBLE.unpack_from(self.memory, self.at(place, BEAT))[0]

    def total(self, field):
        return sum(self.get(place, field) for place in range(self.places))

    def is_over(self):
        return self.memory[0] != 0

    def end(self):
        self.memory[0] = 1

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
