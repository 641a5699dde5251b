"""The bytes of every file, computed from the seed, the path and the offset, so that no copy is needed.

A file consists of 4 KiB units. Each starts with the key of the file and the unit's number, followed by a part
of one of two pools. So no two units of a mount are the same, and misplaced, foreign or partial data is
detected.
"""

import hashlib
import random
import struct
from typing import NamedTuple

UNIT = 4096
POOL = 1 << 20
# Holes are whole blocks of the image, in runs of this many blocks.
BLOCK = 128 << 10
HOLE_BLOCKS = 3

STAMP = struct.Struct("<QQ")
MASK = (1 << 64) - 1


class Wrong(Exception):
    """A failed check. The text says where."""


class File(NamedTuple):
    """The parameters that determine the bytes of a file."""
    path: str
    size: int
    pool: str
    key: int
    sparse: bool = False

    def is_hole(self, block):
        """Whether that block is a hole. The first and the last block of a file never are."""
        if not self.sparse or block == 0 or block >= (self.size - 1) // BLOCK:
            return False
        return mixed(self.key, block // HOLE_BLOCKS) % 2 == 0

    def end_of_run(self, offset):
        """The end of the hole or data that contains `offset`."""
        block = offset // BLOCK
        last = (self.size - 1) // BLOCK
        kind = self.is_hole(block)
        while block <= last and self.is_hole(block) == kind:
            block += 1
        return min(block * BLOCK, self.size)


class Content:
    """The pools, and the contents derived from them."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(f"content {seed}")
        self.pools = {"text": self.text(), "noise": self.random.randbytes(POOL)}

    def text(self):
        """Bytes that compress to about a third."""
        words = [self.random.randbytes(self.random.randint(2, 9)).hex() for _ in range(3000)]
        return " ".join(self.random.choices(words, k=POOL // 8)).encode()[:POOL].ljust(POOL)

    def file(self, origin, path, size, pool="text", sparse=False):
        """A file of the archive `origin`. The same path in another archive has different bytes."""
        digest = hashlib.blake2b(f"{self.seed}/{origin}/{path}".encode(), digest_size=8).digest()
        # Odd, so that no unit starts with a zero byte: mksquashfs turns even a file of a single zero byte
        # into a hole.
        return File(path, size, pool, int.from_bytes(digest, "little") | 1, sparse)

    def bytes_of(self, file, offset, length):
        """Up to `length` bytes from `offset`; fewer at the end of the file."""
        end = min(file.size, offset + length)
        if offset >= end:
            return b""
        first = offset // UNIT
        pool, key = self.pools[file.pool], file.key
        parts = []
        for unit in range(first, (end - 1) // UNIT + 1):
            if file.sparse and file.is_hole(unit * UNIT // BLOCK):
                parts.append(bytes(UNIT))
                continue
            start = mixed(key, unit) % (POOL - UNIT)
            parts.append(STAMP.pack(key, unit))
            parts.append(pool[start:start + UNIT - STAMP.size])
        skipped = offset - first * UNIT
        return b"".join(parts)[skipped:skipped + end - offset]

    def compare(self, file, offset, asked, got):
        """Checks the result of a read of `asked` bytes at `offset`."""
        expected = self.bytes_of(file, offset, asked)
        if got == expected:
            return
        if len(got) != len(expected):
            raise Wrong(f"{file.path}: {len(got)} bytes at {offset} instead of {len(expected)}")
        at = next(at for at in range(len(got)) if got[at] != expected[at])
        raise Wrong(f"{file.path}: wrong byte at {offset + at} of {file.size}: {bytes(got[at:at + 24]).hex()} "
                    f"instead of {expected[at:at + 24].hex()}")

    def write(self, file, path):
        """Writes the file, with its holes."""
        with open(path, "wb") as stream:
            for offset in range(0, file.size, BLOCK):
                if not file.is_hole(offset // BLOCK):
                    stream.seek(offset)
                    stream.write(self.bytes_of(file, offset, BLOCK))


def mixed(key, number):
    """A hash that makes neighboring numbers unrelated."""
    value = ((key ^ number * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9) & MASK
    return value >> 24
