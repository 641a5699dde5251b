"""Makes ZIP archives of a directory with Python's zipfile: zip_make.py ARCHIVE DIRECTORY KIND."""

import os
import stat
import sys
import zipfile


class Pipe:
    """A file that cannot seek, so that lengths are in data descriptors."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        self.file.flush()


METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def main(path, directory, kind):
    """`kind` is a method, perhaps with `-stream` (data descriptors) or `-zip64` (64-bit lengths)."""
    method, _, form = kind.partition("-")
    with open(path, "wb") as file:
        target = Pipe(file) if form == "stream" else file
        with zipfile.ZipFile(target, "w", METHODS[method], strict_timestamps=False) as archive:
            for parent, directories, files in os.walk(directory):
                for name in directories + files:
                    here = os.path.join(parent, name)
                    inside = os.path.relpath(here, directory)
                    add(archive, here, inside, form == "zip64")


def add(archive, path, name, is_large):
    status = os.lstat(path)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return  # zipfile writes no names that are not UTF-8.
    if stat.S_ISDIR(status.st_mode):
        archive.write(path, name)
    elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 28:
        info = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
        info.compress_type = archive.compression
        with open(path, "rb") as source, archive.open(info, "w", force_zip64=is_large) as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    elif stat.S_ISLNK(status.st_mode):
        info = zipfile.ZipInfo(name)
        info.create_system = 3
        info.external_attr = status.st_mode << 16
        archive.writestr(info, os.fsencode(os.readlink(path)))


main(*sys.argv[1:])
