"""The directories that are packed: their contents, and what a mount must show.

Everything is derived from the seed. The directory itself is removed once it is packed.
"""

import os
import stat
from typing import NamedTuple

from soaklib.content import BLOCK, File

# Whole seconds, the same base in every archive.
EPOCH = 1_500_000_000


class Entry(NamedTuple):
    """What a mount must show at a path."""
    path: str
    kind: int
    mode: int
    mtime: int
    file: File = None
    target: str = ""
    attributes: tuple = ()
    links: int = 1


class Sizes(NamedTuple):
    """The number of files of each kind, and the largest size."""
    small: int
    middle: int
    large: int
    sparse: int
    names: int
    huge: int = 0


class Tree:
    """A directory under construction, and its entries."""

    def __init__(self, content, random, origin, directory):
        self.content, self.random, self.origin, self.directory = content, random, origin, directory
        self.entries = {}
        self.attributes = True
        directory.mkdir()

    def fill(self, sizes):
        """Creates the files of this archive: below its own directory, and below one that all archives share."""
        top = self.origin
        for number in range(sizes.small):
            self.add_file(f"{top}/small/{number % 20}/{number}", self.random.randrange(9000))
        for number in range(sizes.middle):
            self.add_file(f"{top}/middle/{number}", self.random.randrange(9000, 5 * BLOCK))
        for number in range(sizes.large):
            # Some files end at a block boundary, some one byte before or after.
            size = self.random.randrange(8, 60) * BLOCK + self.random.choice([-1, 0, 0, 1, 777])
            self.add_file(f"{top}/large/{number}", size, self.random.choice(["text", "noise"]))
        for number in range(sizes.sparse):
            size = self.random.randrange(20, 300) * BLOCK + self.random.randrange(BLOCK)
            self.add_file(f"{top}/sparse/{number}", size, sparse=True)
        for number in range(sizes.names):
            self.add_file(f"{top}/names/file with a long name, number {number:06}", number % 3)
        if sizes.huge:
            self.add_file(f"{top}/huge", sizes.huge)
        self.add_file(f"{top}/{'/'.join('deep' for _ in range(15))}/file", 5000)
        self.add_file(f"{top}/odd/a\nb\\c \xe4\U0001f4be", 300)
        self.add_file(f"{top}/odd/{'n' * 255}", 30)
        for number in range(12):
            self.add_file(f"both/{number}", self.random.randrange(300_000))
            self.add_file(f"both/{self.origin} {number}", self.random.randrange(30_000))
        for number in range(20):
            self.add_link(f"{top}/links/{number}", f"../small/{number % 20}/{number}")
        self.add_link(f"{top}/links/long", "x" * 4000)
        self.add_link(f"{top}/links/nowhere", "/nonexistent/soak")
        os.mkfifo(self.made(f"{top}/fifo"))
        self.note(f"{top}/fifo")
        self.add_hard_link(f"{top}/middle/1", f"{top}/second name")
        for path in sorted(self.directories(), key=len, reverse=True):
            self.note(path)

    def made(self, path):
        """The location of `path`; parent directories are created."""
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def add_file(self, path, size, pool="text", sparse=False):
        file = self.content.file(self.origin, path, size, pool, sparse)
        target = self.made(path)
        self.content.write(file, target)
        os.chmod(target, self.random.choice([0o644, 0o600, 0o444, 0o755]))
        if self.random.random() < 0.05:
            self.set_attribute(target)
        self.note(path, file)

    def set_attribute(self, target):
        """If the work directory's file system has no extended attributes, none are compared."""
        try:
            os.setxattr(target, "user.soak", self.random.randbytes(self.random.choice([3, 40, 300])))
            os.setxattr(target, "user.other", b"")
        except OSError:
            self.attributes = False

    def add_link(self, path, target):
        os.symlink(target, self.made(path))
        self.note(path)

    def add_hard_link(self, first, path):
        os.link(self.directory / first, self.made(path))
        # Both names share one time.
        self.entries[path] = self.entries[first]
        for name in [first, path]:
            self.note(name, self.entries[first].file)

    def note(self, path, file=None):
        """Records the entry, with a time of its own."""
        target = self.directory / path
        known = self.entries.get(path)
        os.utime(target, (EPOCH, known.mtime if known else EPOCH + self.random.randrange(10**7)),
                 follow_symlinks=False)
        found = os.lstat(target)
        is_link = stat.S_ISLNK(found.st_mode)
        names = [] if is_link or not self.attributes else os.listxattr(target)
        self.entries[path] = Entry(
            path, stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), int(found.st_mtime), file,
            os.readlink(target) if is_link else "",
            tuple(sorted((name, os.getxattr(target, name)) for name in names if name.startswith("user."))),
            found.st_nlink if file else 0)

    def directories(self):
        above = {os.path.dirname(path) for path in self.entries} - {""}
        while new := {os.path.dirname(path) for path in above} - above - {""}:
            above |= new
        return above


def merged(trees):
    """What a mount of several archives shows: the later one wins where both have a path."""
    return {path: entry for tree in trees for path, entry in tree.entries.items()}
