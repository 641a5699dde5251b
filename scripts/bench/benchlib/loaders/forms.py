"""The forms in which images are stored: how each is created from the tar, and what a job does before it can
read.

A form has `prepare`, which runs once and creates `files()`, and `begun`, which runs in every job and is
timed. `begun` yields the path for the loader, and a function that returns the memory held for the data.
"""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from benchlib import mounts, reader, systems
from benchlib.loaders import lines
from benchlib.programs import call

MEMORY = "tar in /dev/shm"
FOLDER = "folder on disk"
SHM = pathlib.Path("/dev/shm")


class Images(NamedTuple):
    """The tar of all images, as downloaded, and the directory in which forms are created."""
    tar: pathlib.Path
    kept: pathlib.Path
    count: int


class Unpacked(NamedTuple):
    """The files themselves on disk."""
    images: Images
    name: str = FOLDER
    reader: str = "folder"
    changes: str = "0"

    @property
    def place(self):
        return self.images.kept / "folder"

    def prepare(self):
        unpack(self.images.tar, self.place)

    def files(self):
        return all_files(self.place)

    @contextlib.contextmanager
    def begun(self, _place):
        yield self.place / "train", lambda: 0


class InMemory(NamedTuple):
    """The files in a tmpfs, where every job unpacks the tar on every node."""
    images: Images
    name: str = MEMORY
    reader: str = "folder"
    changes: str = "0"

    def prepare(self):
        """What every job does, for comparison with the forms that are created once."""
        with self.begun(None):
            pass

    def files(self):
        return [self.images.tar]

    @contextlib.contextmanager
    def begun(self, _place):
        with tempfile.TemporaryDirectory(dir=SHM, prefix="archfs-loaders-") as folder:
            unpack(self.images.tar, pathlib.Path(folder))
            yield pathlib.Path(folder) / "train", lambda: on_disk(all_files(folder))


class Converted(NamedTuple):
    """One file or directory, created by a function of convert.py."""
    images: Images
    name: str
    reader: str
    function: str
    ask: Callable

    @property
    def changes(self):
        return f"{lines.changed(self.reader)} + {lines.converter(self.function)}"

    @property
    def place(self):
        return self.images.kept / self.function

    def prepare(self):
        remove(self.place)
        self.ask(function=self.function, tar=str(self.images.tar), output=str(self.place))

    def files(self):
        return [self.place] if self.place.is_file() else all_files(self.place)

    @contextlib.contextmanager
    def begun(self, _place):
        yield self.place, lambda: 0


class Mounted(NamedTuple):
    """An archive, created from the tar by the command `made`, that `mount` shows as a directory."""
    images: Images
    mount: systems.Mount
    archive: pathlib.Path
    made: tuple
    also: tuple = ()
    reader: str = "folder"
    changes: str = "0"

    @property
    def name(self):
        return self.mount.name

    def prepare(self):
        for file in set(self.files()) - {self.images.tar}:
            remove(file)
        call(*self.made, stdout=subprocess.DEVNULL)

    def files(self):
        return [self.archive, *self.also]

    @contextlib.contextmanager
    def begun(self, place):
        with self.mount.mounted(self.archive, place) as root:
            yield root / "train", lambda: reader.anonymous_memory(
                reader.daemon(["archfs", "squashfuse_ll"], self.archive))


def everything(images, ask, archfs, commit):
    """All forms that are available, the directory first and archfs last."""
    image, index = images.kept / "images.sqfs", pathlib.Path(f"{images.tar}.archfs-index")
    pack = (archfs, "pack", "--quiet", "--force", images.tar, image)
    found = [Unpacked(images), InMemory(images),
             Converted(images, "HDF5, bytes and ends", "hdf5_bytes", "hdf5_bytes", ask),
             Converted(images, "HDF5, arrays", "hdf5_vlen", "hdf5_vlen", ask),
             Converted(images, "LMDB", "lmdb", "lmdb_keys", ask),
             Converted(images, "WebDataset", "webdataset", "shards", ask)]
    program = shutil.which("squashfuse_ll")
    if program:
        found.append(Mounted(images, systems.of_squashfuse(program, systems.LOW_LEVEL), image, pack))
    else:
        print("left out: squashfuse_ll (not installed)")
    found.append(Mounted(images, systems.of_archfs(archfs, commit, systems.ARCHFS_TAR, "tar"), images.tar,
                         (archfs, "index", "--quiet", images.tar), (index,)))
    return [*found, Mounted(images, systems.of_archfs(archfs, commit, systems.ARCHFS, "squashfs"), image,
                            pack)]


def unpack(tar, place):
    remove(place)
    place.mkdir()
    call("tar", "-C", place, "-xf", tar)


def remove(place):
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)


def all_files(folder):
    return sorted(file for file in pathlib.Path(folder).rglob("*") if file.is_file())


def on_disk(files):
    return sum(512 * file.stat().st_blocks for file in files)

