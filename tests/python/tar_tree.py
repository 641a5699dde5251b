"""Prints the tree that a tar describes, as Python's tarfile reads it: the oracle of tests/reading/tar.rs.

One line a path, sorted: path and link target in hex, kind, mode, owner, group, size, mtime in nanoseconds, CRC-32 of
the contents. If members have the same path, the last one counts, but a directory stays a directory.
With --find, prints the path of Python's own test archive instead.
"""

import decimal
import os
import posixpath
import sys
import tarfile
import zlib


def clean(name):
    path = posixpath.normpath("/" + name)
    return os.fsencode(path.lstrip("/"))


def nanoseconds(member):
    text = member.pax_headers.get("mtime", member.mtime)
    return int((decimal.Decimal(text) * 10**9).to_integral_value(decimal.ROUND_FLOOR))


def kind(member):
    if member.isdir():
        return "d"
    if member.issym():
        return "l"
    if member.ischr():
        return "c"
    if member.isblk():
        return "b"
    if member.isfifo():
        return "p"
    return "-"


def crc(archive, member):
    stream = archive.extractfile(member)
    total = 0
    while chunk := stream.read(1 << 20):
        total = zlib.crc32(chunk, total)
    return total


def main(path):
    found = {}
    with tarfile.open(path, ignore_zeros=True, errors="surrogateescape") as archive:
        for member in archive:
            inode = member
            if member.islnk():
                try:
                    inode = archive._find_link_target(member)
                except KeyError:
                    continue
            name = clean(member.name)
            if name in found and found[name][0] == "d" and not member.isdir():
                continue
            letter = kind(inode)
            target = os.fsencode(inode.linkname).hex() if letter == "l" else ""
            size = {"-": inode.size, "l": len(target) // 2}.get(letter, 0)
            content = crc(archive, inode) if letter == "-" else 0
            found[name] = (letter, inode.mode & 0o7777, inode.uid, inode.gid, size,
                           nanoseconds(inode), content, target)
    for name, row in sorted(found.items()):
        print(name.hex() or "/", *row)


if __name__ == "__main__":
    if sys.argv[1] == "--find":
        import test
        for name in ["testtar.tar", "archivetestdata/testtar.tar"]:
            candidate = os.path.join(list(test.__path__)[0], name)
            if os.path.exists(candidate):
                print(candidate)
                break
    else:
        main(sys.argv[1])
