#!/usr/bin/env python3
"""Decodes every block of a SquashFS image made with -comp gzip, using only zlib, and prints how many bytes must be
decoded to read each file, one file a line in the order of the inode table.

An oracle for `archfs info`: written from squashfs_fs.h, without code of archfs.
"""

import struct
import sys
import zlib

NONE = 0xFFFFFFFF


def metadata(image, at, end):
    """The decoded bytes of the chain of metadata blocks from `at` to `end`."""
    out = b""
    while at < end:
        (word,) = struct.unpack_from("<H", image, at)
        stored = image[at + 2 : at + 2 + (word & 0x7FFF)]
        out += stored if word & 0x8000 else zlib.decompress(stored)
        at += 2 + (word & 0x7FFF)
    return out


def decoded(image, start, word):
    """Decoded size of the block that `word` describes."""
    length = word & 0xFFFFFF
    if length == 0 or word & (1 << 24):
        return 0
    return len(zlib.decompress(image[start : start + length]))


def fragments(image, table, count):
    blocks = -(-count // 512)
    offsets = struct.unpack_from(f"<{blocks}Q", image, table)
    records = b"".join(metadata(image, offset, offset + 1) for offset in offsets)
    for number in range(count):
        start, word, _ = struct.unpack_from("<QII", records, 16 * number)
        yield decoded(image, start, word)


def costs(image):
    fields = struct.unpack_from("<IIIIIHHHHHHQQQQQQQQ", image, 0)
    block_size, fragment_count, inodes = fields[3], fields[4], fields[1]
    inode_table, directory_table, fragment_table = fields[15], fields[16], fields[17]
    ends = list(fragments(image, fragment_table, fragment_count)) if fragment_count else []
    table = metadata(image, inode_table, directory_table)
    at = 0
    for _ in range(inodes):
        (kind,) = struct.unpack_from("<H", table, at)
        at += 16
        if kind == 1:
            at += 16
        elif kind == 8:
            count = struct.unpack_from("<H", table, at + 16)[0]
            at += 24
            for _ in range(count):
                at += 12 + struct.unpack_from("<I", table, at + 8)[0] + 1
        elif kind in (3, 10):
            at += 8 + struct.unpack_from("<I", table, at + 4)[0] + (4 if kind == 10 else 0)
        elif kind in (4, 5, 11, 12):
            at += 8 + (4 if kind > 7 else 0)
        elif kind in (6, 7, 13, 14):
            at += 4 + (4 if kind > 7 else 0)
        elif kind in (2, 9):
            if kind == 2:
                start, fragment, _, size = struct.unpack_from("<IIII", table, at)
                at += 16
            else:
                start, size, _, _, fragment, _, _ = struct.unpack_from("<QQQIIII", table, at)
                at += 40
            count = size // block_size if fragment != NONE else -(-size // block_size)
            cost = ends[fragment] if fragment != NONE else 0
            for word in struct.unpack_from(f"<{count}I", table, at):
                cost += decoded(image, start, word)
                start += word & 0xFFFFFF
            at += 4 * count
            yield cost
        else:
            raise SystemExit(f"inode of kind {kind}")
    assert at == len(table), "the inode table ends with the last inode"


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for cost in costs(file.read()):
            print(cost)
