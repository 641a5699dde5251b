"""Prints the files that a ZIP archive has, as Python's zipfile reads it: the oracle of tests/reading/zip.rs.

One line a path, sorted: path in hex, kind, size, CRC-32 of the contents, target of a symbolic link in hex. If entries
have the same path, the last one counts, but a directory stays a directory.
"""

import posixpath
import stat
import sys
import zipfile
import zlib

UNIX = 3


def path_of(info):
    """The path as bytes: in UTF-8, or as the file system of its writer had it."""
    is_utf8 = info.flag_bits & 0x800
    name = info.orig_filename.encode("utf-8" if is_utf8 else "cp437")
    if not is_utf8 and info.create_system != UNIX:
        name = name.decode("cp437").encode()
    return posixpath.normpath(b"/" + name).lstrip(b"/")


def main(path):
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == UNIX else 0
            name = path_of(info)
            if info.is_dir() or kind == stat.S_IFDIR:
                found[name] = ("d", 0, 0, "")
                continue
            if name in found and found[name][0] == "d":
                continue
            total, size = 0, 0
            target = b""
            with archive.open(info) as stream:
                while chunk := stream.read(1 << 20):
                    total = zlib.crc32(chunk, total)
                    size += len(chunk)
                    target = chunk
            if kind == stat.S_IFLNK and size:
                found[name] = ("l", size, 0, target.hex())
            else:
                found[name] = ("-", size, total, "")
    for name, row in sorted(found.items()):
        if name:
            print(name.hex(), *row)


main(sys.argv[1])
