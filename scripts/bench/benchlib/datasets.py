"""The directories that are measured, their archives, and the lists of files to read.

Everything is created on first use, deterministically, and kept in the work directory.

J      files like JPEGs: 20,000 of 80 KB on average in 100 directories; their bytes do not compress
S      small compressible files: the Linux source of Debian's package linux-source, the tree given with
       --tree, or else this machine's /usr/include and /usr/share
big    one compressible file of 2 GiB
many   1.3 million files of up to 0.6 KB, only as an image or a tar
"""

import glob
import itertools
import os
import pathlib
import random
import shutil
import subprocess
import tarfile
from typing import NamedTuple

from benchlib.programs import call

BIG_BYTES, BIG_BYTES_QUICK = 2 << 30, 128 << 20
MANY_DIRECTORIES, MANY_DIRECTORIES_QUICK = 1300, 100


class Dataset(NamedTuple):
    """A directory, a file with the paths of the files to read in it, and the location of its archives.

    `compressor` is that of its SquashFS image; `packed` is the part of the directory that a tar gets, if not
    all of it.
    """
    name: str
    source: pathlib.Path
    listing: pathlib.Path
    work: pathlib.Path
    compressor: str = "zstd"
    packed: tuple = ()

    def files(self):
        return self.listing.read_text(errors="surrogateescape").splitlines()

    def about(self):
        sizes = [(self.source / file).stat().st_size for file in self.files()]
        return f"{len(sizes)} files, {sum(sizes) / 1e6:.0f} MB"

    def archive(self, form):
        """The archive of the directory in one form, created if missing."""
        suffix = f"{self.compressor}.sqfs" if form == "squashfs" else form
        make = {"squashfs": self.make_squashfs, "erofs": self.make_erofs,
                "tar": self.make_tar, "tar.gz": self.make_tar,
                "zip": self.make_zip, "stored.zip": self.make_zip}[form]
        return made(self.work / f"{self.listing.stem}.{suffix}", make)

    def make_squashfs(self, part):
        call("mksquashfs", self.source, part, "-comp", self.compressor, "-quiet", "-no-progress")

    def make_erofs(self, part):
        call("mkfs.erofs", "-zlz4hc", part, self.source, stdout=subprocess.DEVNULL)

    def make_tar(self, part):
        compress = ["-z"] if ".gz" in part.name else []
        call("tar", "-C", self.source, "-c", *compress, "-f", part, "--sort=name",
             "--", *(self.packed or sorted(os.listdir(self.source))))

    def make_zip(self, part):
        """Compressed by deflate, or stored."""
        level = "-0" if "stored" in part.name else "-6"
        call("zip", "-q", "-r", "-y", level, part, ".", cwd=self.source)

    def part(self, count):
        """The first `count` directories, for a tar of a part of them."""
        names = tuple(sorted(os.listdir(self.source))[:count])
        files = [file for file in self.files() if file.split("/")[0] in names]
        stem = f"{self.listing.stem}-{count}-directories"
        return self._replace(listing=listed(self.work / f"{stem}.list", files), packed=names)

    def sample(self, count):
        """The same archives, of which only `count` files are read."""
        files = self.files()
        files = random.Random(2).sample(files, min(count, len(files)))
        return self._replace(listing=listed(self.work / f"{self.listing.stem}.sample.list", files))


def made(path, make):
    """Returns `path`, created by `make(part)` if missing. An incomplete file never has that name."""
    if not path.exists():
        print(f"making {path.name}", flush=True)
        part = path.with_name(f"{path.name}.part")
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
        make(part)
        part.rename(path)
    return path


def listed(path, files):
    path.write_text("".join(f"{file}\n" for file in sorted(files)), errors="surrogateescape")
    return path


def of_directory(name, source, work, compressor="zstd"):
    files = [os.path.relpath(os.path.join(directory, file), source)
             for directory, _, names in os.walk(source) for file in names]
    regular = [file for file in files if "\n" not in file and
               os.path.isfile(source / file) and not os.path.islink(source / file)]
    return Dataset(name, source, listed(work / f"{source.name}.list", regular), work, compressor)


# J and S.

def j(work, quick):
    count = 4_000 if quick else 20_000
    source = made(work / ("J-quick" if quick else "J"), lambda part: make_j(part, count))
    return of_directory("J", source, work)


def make_j(directory, count):
    """Files of 80 KB on average: a short compressible header as in a JPEG, then noise."""
    rng = random.Random(1)
    for number in range(count):
        class_directory = directory / f"n{number % 100:08d}"
        class_directory.mkdir(parents=True, exist_ok=True)
        size = max(2000, int(rng.gauss(80_000, 25_000)))
        head = b"\xff\xd8\xff\xe0" + bytes(596)
        (class_directory / f"n{number % 100:08d}_{number}.JPEG").write_bytes(head + rng.randbytes(size - 600))


def s(work, quick, compressor, tree=None):
    name = f"S, {compressor}"
    if tree:
        # Named after the tree, so that its archives are found again. A changed tree needs another work
        # directory.
        return of_directory(name, tree, work, compressor)
    count = 10_000 if quick else None
    source = made(work / ("S-quick" if quick else "S"), lambda part: make_s(part, count))
    return of_directory(name, source, work, compressor)


def make_s(directory, count):
    archives = sorted(glob.glob("/usr/src/linux-source-*.tar.xz"))
    directory.mkdir(parents=True)
    if archives and not count:
        call("tar", "-C", directory, "-xf", archives[0])
        return
    if archives:
        with tarfile.open(archives[0], "r|xz") as stream:
            regular = (member for member in stream if member.isreg())
            for member, _ in zip(regular, range(count)):
                stream.extract(member, directory)
        return
    print("linux-source is not installed (scripts/install-deps bench does): S is /usr/include and "
          "/usr/share of this machine", flush=True)
    for source in ["/usr/include", "/usr/share"]:
        call("cp", "-a", source, directory)
    if count:
        for file in sorted(p for p in directory.rglob("*") if p.is_file() and not p.is_symlink())[count:]:
            file.unlink()


# One large file.

def big(work, quick):
    source = made(work / ("big-quick" if quick else "big"),
                  lambda part: make_big(part, BIG_BYTES_QUICK if quick else BIG_BYTES))
    return of_directory("big file", source, work)


def make_big(directory, size):
    """Lines of words with frequencies like those of a language; blocks share almost no lines."""
    rng = random.Random(2)
    words = [bytes(rng.choices(b"etaoinshrdlucmfwypvbgkjqxz", k=rng.randint(2, 9))) for _ in range(3_000)]
    often = list(itertools.accumulate((rank + 1) ** -1.1 for rank in range(len(words))))
    lines = [b" ".join(rng.choices(words, cum_weights=often, k=12)) + b"\n" for _ in range(200_000)]
    directory.mkdir(parents=True)
    with open(directory / "text", "wb") as stream:
        while (left := size - stream.tell()) > 0:
            stream.write(b"".join(rng.choices(lines, k=100_000))[:left])


# 1.3 million small files.

def many_directory(number):
    return f"train/n{1_440_764 + 7 * number:08d}"


def many_image(work, directories):
    def make(part):
        command = ["mksquashfs", "-", part, "-tar", "-comp", "zstd", "-quiet", "-no-progress"]
        packer = subprocess.Popen(command, stdin=subprocess.PIPE)
        with packer.stdin as stream:
            write_many(stream, directories)
        if packer.wait():
            raise subprocess.CalledProcessError(packer.returncode, "mksquashfs")
    return made(work / f"many-{directories}.sqfs", make)


def many_tar(work, directories):
    def make(part):
        with open(part, "wb", buffering=1 << 22) as stream:
            write_many(stream, directories)
    return made(work / f"many-{directories}.tar", make)


def write_many(stream, directories):
    """A tar of directories with 1,000 small members each, as GNU tar would write it, but without creating
    files.
    """
    rng = random.Random(3)
    bodies = [(b"%011o\0" % size, rng.randbytes(size) + bytes(-size % 512))
              for size in range(0, 600, 7)]
    nothing = bodies[0][0]
    stream.write(header(b"train/", b"0000755\0", nothing, b"5"))
    for number in range(directories):
        directory = many_directory(number).encode()
        written = bytearray(header(b"%b/" % directory, b"0000755\0", nothing, b"5"))
        for image in rng.sample(range(30_000), 1000):
            size, body = bodies[image % len(bodies)]
            name = b"%b/%b_%d.JPEG" % (directory, directory.split(b"/")[1], image)
            written += header(name, b"0000644\0", size, b"0")
            written += body
        stream.write(written)
    stream.write(bytes(10_240))


def header(name, mode, size, kind):
    """A header as GNU tar writes it (fields and checksum: POSIX pax, ustar interchange format)."""
    front = name.ljust(100, b"\0") + mode + b"0001750\0" * 2 + size + b"14512345670\0"
    back = kind + bytes(100) + b"ustar  \0" + bytes(247)
    return front + b"%06o\0 " % (sum(front) + sum(back) + 8 * ord(" ")) + back
