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
DIRECTORY = "directory on disk"
SHM = pathlib.Path("/dev/shm")


class Images(NamedTuple):
    """The tar of all images, as downloaded, and the directory in which forms are created."""
    tar: pathlib.Path
    kept: pathlib.Path
    count: int


class Unpacked(NamedTuple):
    """The files themselves on disk."""
    images: Images
    name: str = DIRECTORY
    reader: str = "directory"
    changes: str = "0"

    @property
    def path(self):
        return self.images.kept / "directory"

    def prepare(self):
        unpack(self.images.tar, self.path)

    def files(self):
        return all_files(self.path)

    @contextlib.contextmanager
    def begun(self, _mount_point):
        yield self.path / "train", lambda: 0


class InMemory(NamedTuple):
    """The files in a tmpfs, where every job unpacks the tar on every node."""
    images: Images
    name: str = MEMORY
    reader: str = "directory"
    changes: str = "0"

    def prepare(self):
        """What every job does, for comparison with the forms that are created once."""
        with self.begun(None):
            pass

    def files(self):
        return [self.images.tar]

    @contextlib.contextmanager
    def begun(self, _mount_point):
        with tempfile.TemporaryDirectory(dir=SHM, prefix="archfs-loaders-") as directory:
            unpack(self.images.tar, pathlib.Path(directory))
            yield pathlib.Path(directory) / "train", lambda: on_disk(all_files(directory))


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
    def path(self):
        return self.images.kept / self.function

    def prepare(self):
        remove(self.path)
        self.ask(function=self.function, tar=str(self.images.tar), output=str(self.path))

    def files(self):
        return [self.path] if self.path.is_file() else all_files(self.path)

    @contextlib.contextmanager
    def begun(self, _mount_point):
        yield self.path, lambda: 0


class Mounted(NamedTuple):
    """An archive, created from the tar by the command `made`, that `mount` shows as a directory."""
    images: Images
    mount: systems.Mount
    archive: pathlib.Path
    made: tuple
    also: tuple = ()
    reader: str = "directory"
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
    def begun(self, mount_point):
        with self.mount.mounted(self.archive, mount_point) as root:
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


def unpack(tar, directory):
    remove(directory)
    directory.mkdir()
    call("tar", "-C", directory, "-xf", tar)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def all_files(directory):
    return sorted(file for file in pathlib.Path(directory).rglob("*") if file.is_file())


def on_disk(files):
    return sum(512 * file.stat().st_blocks for file in files)

