"""Reads of files that an archive stores as they are, without a request to the server.

The server has made two tables and passes them on with the archives: from the path of a file to its number
(src/reader/path_table.rs), and from the number to the positions of its bytes (src/direct/table.rs). All processes
map the same tables.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Optional

# Native byte order: this is the machine that wrote the tables.
_PATHS = struct.Struct("=8sQQ")
_SLOT = struct.Struct("=QQII")
_POSITIONS = struct.Struct("=8sQQQQQQ")
_FILES_AT = 56
_FILE = struct.Struct("=QQQqQqQ")
_ENTRY = struct.Struct("=QQ")
_TAIL = struct.Struct("=QQQ")

_OFFSET_BITS = 48
_OFFSET = (1 << _OFFSET_BITS) - 1
_NUMBER = 0x7FFF
_HAS_TAIL = 1 << 63


class _Positions(NamedTuple):
    """Where the bytes of a file are: one part, or two."""

    size: int
    head: int
    head_len: int
    tail: int


def _mapped(table: int) -> mmap.mmap:
    """Maps a sealed table. Before Linux 6.7, a file that is sealed against writing cannot be mapped shared."""
    return mmap.mmap(table, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


class DirectReads:
    """The tables and the archives. May be used by several threads, and after a fork."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        paths, positions, *self._archives = descriptors
        try:
            self._paths = _mapped(paths)
            self._positions = _mapped(positions)
        finally:
            os.close(paths)
            os.close(positions)
        _, self._slots, self._paths_at = _PATHS.unpack_from(self._paths)
        header = _POSITIONS.unpack_from(self._positions)
        _, _, self._entries, self._entries_at, _, self._tails_at, count = header
        places = range(_FILES_AT, _FILES_AT + count * _FILE.size, _FILE.size)
        self._expected = [_identity(*_FILE.unpack_from(self._positions, at)) for at in places]

    def read(self, path: bytes, offset: int, size: int) -> Optional[tuple[bytes, int]]:
        """Bytes of a file, and its size. None if only the server can read it, or must say what is wrong."""
        found = self._find(path)
        if found is None:
            return None
        end = min(offset + size, found.size)
        if offset >= end:
            return b"", found.size
        data = b""
        if offset < found.head_len:
            data = self._part(found.head, offset, min(end, found.head_len))
        if end > found.head_len:
            first = max(offset - found.head_len, 0)
            data += self._part(found.tail, first, end - found.head_len)
        # Short if the archive was cut off.
        if len(data) != end - offset or not self._are_unchanged(found):
            return None
        return data, found.size

    def _find(self, path: bytes) -> Optional[_Positions]:
        crc = zlib.crc32(path)
        slot = crc % self._slots
        for _ in range(self._slots):
            offset, number, found, length = _SLOT.unpack_from(self._paths, _PATHS.size + slot * _SLOT.size)
            if offset == 0:
                return None
            at = self._paths_at + offset - 1
            if found == crc and length == len(path) and self._paths[at : at + length] == path:
                return self._of(number)
            slot = (slot + 1) % self._slots
        return None

    def _of(self, number: int) -> Optional[_Positions]:
        if number >= self._entries:
            return None
        location, size = _ENTRY.unpack_from(self._positions, self._entries_at + number * _ENTRY.size)
        if location == 0:
            return None
        if not location & _HAS_TAIL:
            return _Positions(size, location, size, 0)
        head, tail, head_len = _TAIL.unpack_from(self._positions, self._tails_at + (location & _OFFSET) * _TAIL.size)
        return _Positions(size, head, head_len, tail)

    def _part(self, location: int, start: int, end: int) -> bytes:
        archive = self._archives[_number(location)]
        return os.pread(archive, end - start, (location & _OFFSET) + start)

    def _are_unchanged(self, found: _Positions) -> bool:
        """Whether the archives of a file are the files that were opened, and were not written since."""
        for number in {_number(location) for location in (found.head, found.tail) if location}:
            now = os.fstat(self._archives[number])
            seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            if seen != self._expected[number]:
                return False
        return True

    def close(self) -> None:
        """Closes everything. No thread may read any more."""
        for descriptor in self._archives:
            os.close(descriptor)
        self._archives = []
        self._paths.close()
        self._positions.close()


def _identity(
    device: int, inode: int, size: int, modified: int, modified_ns: int, changed: int, changed_ns: int
) -> tuple[int, ...]:
    """The description of an archive in the table, with times as os.stat has them."""
    return device, inode, size, modified * 10**9 + modified_ns, changed * 10**9 + changed_ns


def _number(location: int) -> int:
    """The number of an archive."""
    return (location >> _OFFSET_BITS & _NUMBER) - 1
