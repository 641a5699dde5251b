"""Reads of files that an archive stores as they are, without a request to the server.

The server has made two tables and passes them on with the archives: from the path of a file to its number
(src/reader/direct.rs), and from the number to the positions of its bytes (src/direct/table.rs). All processes
map the same tables.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Optional

# Native byte order: this is the machine that wrote the tables.
_PATHS = struct.Struct("=8sQQ")
_SLOT = struct.Struct("=QQIIQ")
_POSITIONS = struct.Struct("=8sQQQQQQ")
_FILES_AT = 56
_FILE = struct.Struct("=QQQqQqQ")
_ENTRY = struct.Struct("=QQ")
_TAIL = struct.Struct("=QQQ")

# The part of the limit of open files that archives may take, and the lowest number for them: programs are unlikely to
# close or replace descriptors from there on.
_LIMIT_PART = 8
_LEAST_NUMBER = 1000

_OFFSET_BITS = 48
_OFFSET = (1 << _OFFSET_BITS) - 1
_NUMBER = 0x7FFF
_HAS_TAIL = 1 << 63


# A program may close descriptors that it does not know, and open its own files at their numbers. So a read counts only
# if a check after it finds the archive at that number. That is not enough if another thread receives the archive at the
# number in between. So a read counts only if no thread received descriptors from its start to the end of the check:
# there is none in _receiving, and _received is the same object.
_receiving: set[object] = set()
_received = object()

# A forked child has none of the other threads.
os.register_at_fork(after_in_child=_receiving.clear)

# Tables whose descriptors may be the program's now. They stay, because mmap would close these numbers.
_kept: list[mmap.mmap] = []


@contextmanager
def receiving() -> Iterator[None]:
    """Surrounds the receipt of descriptors of archives."""
    global _received
    token = object()
    _receiving.add(token)
    try:
        yield
    finally:
        _received = object()
        _receiving.discard(token)


def is_ours(descriptor: int, identity: tuple[int, int]) -> bool:
    """Whether a descriptor still is the file with this device and inode number."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity


def may_have(count: int) -> bool:
    """Whether this process may have this number of descriptors for archives."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or count <= limit // _LIMIT_PART


class _Positions(NamedTuple):
    """Where the bytes of a file are: one part, or two; and what to compare all of them with."""

    size: int
    head: int
    head_len: int
    tail: int
    checksum: int


class _Table:
    """A sealed table, mapped. Before Linux 6.7, a file that is sealed against writing cannot be mapped shared."""

    def __init__(self, table: int) -> None:
        # Later versions of mmap keep no descriptor.
        self._number: Optional[int] = -1
        if sys.version_info >= (3, 13):
            self.map = mmap.mmap(table, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, trackfd=False)
            return
        status = os.fstat(table)
        self._identity = status.st_dev, status.st_ino
        before = _numbers_of(self._identity)
        self.map = mmap.mmap(table, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        added = _numbers_of(self._identity) - before
        # None if another thread has mapped it at the same time.
        self._number = added.pop() if len(added) == 1 else None

    def close(self) -> None:
        number = self._number
        if number == -1 or (number is not None and is_ours(number, self._identity)):
            self.map.close()
        else:
            _kept.append(self.map)


def _numbers_of(identity: tuple[int, int]) -> set[int]:
    """The descriptors of this process that are the file with this device and inode number."""
    return {number for number in map(int, os.listdir("/proc/self/fd")) if is_ours(number, identity)}


class DirectReads:
    """The tables and the archives. May be used by several threads, and after a fork."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Takes the tables and the archives, and closes `descriptors`. Raises OSError if it cannot have them all."""
        self._archives: list[int] = []
        # Numbers of archives that were written to, or have other attributes.
        self._changed: set[int] = set()
        try:
            # Fewer arrive if the process has no room for all.
            if len(descriptors) < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._tables = _Table(descriptors[0]), _Table(descriptors[1])
            self._paths, self._positions = (table.map for table in self._tables)
            _, self._slots, self._paths_at = _PATHS.unpack_from(self._paths)
            header = _POSITIONS.unpack_from(self._positions)
            _, _, self._entries, self._entries_at, _, self._tails_at, count = header
            places = range(_FILES_AT, _FILES_AT + count * _FILE.size, _FILE.size)
            self._expected = [_identity(*_FILE.unpack_from(self._positions, at)) for at in places]
            self._archives = self._adopted(descriptors[2:])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def replace(self, descriptors: Sequence[int]) -> None:
        """Takes the archives again after the program has closed them, and closes `descriptors`. Raises OSError as
        above."""
        try:
            adopted = self._adopted(descriptors[2:])
            # Another thread may have been faster, also since this one began.
            before, self._archives = self._archives, adopted
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._close(before)

    def _adopted(self, descriptors: Sequence[int]) -> list[int]:
        """Copies of the descriptors at high numbers."""
        if len(descriptors) != len(self._expected):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        adopted: list[int] = []
        try:
            for descriptor in descriptors:
                adopted.append(_high(descriptor))
        except BaseException:
            for descriptor in adopted:
                os.close(descriptor)
            raise
        return adopted

    @property
    def has_archives(self) -> bool:
        """Whether the archives are open, as far as is known."""
        return bool(self._archives)

    def read(self, path: bytes, offset: int, size: int) -> Optional[tuple[bytes, int, int]]:
        """Bytes of a file, its size, and its checksum. None if only the server can read it, or must say what is
        wrong.
        """
        archives, received = self._archives, _received
        if not archives or _receiving:
            return None
        found = self._find(path)
        if found is None:
            return None
        end = min(offset + size, found.size)
        if offset >= end:
            return b"", found.size, found.checksum
        numbers = {_number(location) for location in (found.head, found.tail) if location}
        if not numbers.isdisjoint(self._changed):
            return None
        data = b""
        try:
            if offset < found.head_len:
                data = _part(archives, found.head, offset, min(end, found.head_len))
            if end > found.head_len:
                first = max(offset - found.head_len, 0)
                data += _part(archives, found.tail, first, end - found.head_len)
        except OSError:
            data = b""
        # Short if the archive was cut off.
        is_valid = self._are_unchanged(archives, numbers) and len(data) == end - offset
        if not is_valid or _receiving or _received is not received:
            return None
        if len(data) == found.size and not is_right(data, found.checksum):
            return None
        return data, found.size, found.checksum

    def _find(self, path: bytes) -> Optional[_Positions]:
        crc = zlib.crc32(path)
        slot = crc % self._slots
        for _ in range(self._slots):
            offset, number, found, length, checksum = _SLOT.unpack_from(self._paths, _PATHS.size + slot * _SLOT.size)
            if offset == 0:
                return None
            at = self._paths_at + offset - 1
            if found == crc and length == len(path) and self._paths[at : at + length] == path:
                return self._of(number, checksum)
            slot = (slot + 1) % self._slots
        return None

    def _of(self, number: int, checksum: int) -> Optional[_Positions]:
        if number >= self._entries:
            return None
        location, size = _ENTRY.unpack_from(self._positions, self._entries_at + number * _ENTRY.size)
        if location == 0:
            return None
        if not location & _HAS_TAIL:
            return _Positions(size, location, size, 0, checksum)
        head, tail, head_len = _TAIL.unpack_from(self._positions, self._tails_at + (location & _OFFSET) * _TAIL.size)
        return _Positions(size, head, head_len, tail, checksum)

    def _are_unchanged(self, archives: list[int], numbers: set[int]) -> bool:
        """Whether these archives are the files that were opened, and were not written since."""
        for number in numbers:
            expected = self._expected[number]
            try:
                now = os.fstat(archives[number])
            except OSError:
                self._lose(archives)
                return False
            seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            if seen != expected:
                if seen[:2] == expected[:2]:
                    self._changed.add(number)
                else:
                    self._lose(archives)
                return False
        return True

    def _lose(self, archives: list[int]) -> None:
        """Gives descriptors up, of which the program has closed or replaced some."""
        if self._archives is archives:
            self._archives = []
            self._close(archives)

    def _close(self, archives: list[int]) -> None:
        """Closes those that are ours."""
        ours = [one for one, expected in zip(archives, self._expected) if is_ours(one, expected[:2])]
        for descriptor in ours:
            os.close(descriptor)

    def close(self) -> None:
        """Closes everything. No thread may read any more."""
        archives, self._archives = self._archives, []
        self._close(archives)
        for table in self._tables:
            table.close()


def _high(descriptor: int) -> int:
    """A copy of a descriptor, at a high number if the limit of open files allows that."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LEAST_NUMBER)
    except OSError:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _part(archives: list[int], location: int, start: int, end: int) -> bytes:
    return os.pread(archives[_number(location)], end - start, (location & _OFFSET) + start)


def is_right(data: bytes, checksum: int) -> bool:
    """Whether all bytes of a file have a checksum from the archive (CRC-32 plus 2^32; 0 for none)."""
    return checksum == 0 or zlib.crc32(data) == checksum & 0xFFFFFFFF


def _identity(
    device: int, inode: int, size: int, modified: int, modified_ns: int, changed: int, changed_ns: int
) -> tuple[int, int, int, int, int]:
    """The description of an archive in the table, with times as os.stat has them."""
    return device, inode, size, modified * 10**9 + modified_ns, changed * 10**9 + changed_ns


def _number(location: int) -> int:
    """The number of an archive."""
    return (location >> _OFFSET_BITS & _NUMBER) - 1
