"""The archives: a SquashFS image, an uncompressed tar, a tar.zst and a tar.gz.

The first three are mounted as one tree. The tar.gz is mounted alone, and every read of it decompresses.
"""

import shutil
import subprocess
from typing import NamedTuple

from soaklib import trees
from soaklib.trees import Sizes, Tree

# The size of independent frames, as parallel packers write them.
FRAME_BYTES = 2 << 20

SIZES = {
    "image": Sizes(small=800, middle=100, large=10, sparse=5, names=2000, huge=200 << 20),
    "stored": Sizes(small=200, middle=40, large=6, sparse=3, names=50),
    "frames": Sizes(small=200, middle=40, large=3, sparse=0, names=50),
    "packed": Sizes(small=300, middle=60, large=6, sparse=2, names=300),
}


class Dataset(NamedTuple):
    """The archives of one mount, and what it must show."""
    name: str
    archives: list
    entries: dict

    def bytes(self):
        return sum(entry.file.size for entry in self.entries.values() if entry.file)


def make(work, content, random):
    """Creates both datasets. Prints a note if extended attributes could not be packed."""
    packed = {}
    for origin, sizes in SIZES.items():
        tree = Tree(content, random, origin, work / f"source-{origin}")
        tree.fill(sizes)
        packed[origin] = (tree, MAKERS[origin](tree.directory, work))
        shutil.rmtree(tree.directory)
    if not all(tree.attributes for tree, _ in packed.values()):
        print("soak: the work directory takes no extended attributes, so none are packed", flush=True)
    together = [packed[origin] for origin in ["image", "stored", "frames"]]
    alone = [packed["packed"]]
    return [Dataset(name, [archive for _, archive in group], trees.merged([tree for tree, _ in group]))
            for name, group in [("merged", together), ("alone", alone)]]


def image(directory, work):
    archive = work / "image.sqfs"
    call("mksquashfs", directory, archive, "-comp", "zstd", "-Xcompression-level", "3", "-b", "128K",
         "-quiet", "-no-progress")
    return archive


def stored(directory, work):
    return tar(directory, work / "stored.tar")


def frames(directory, work):
    plain = tar(directory, work / "plain.tar")
    archive = work / "frames.tar.zst"
    with open(plain, "rb") as source, open(archive, "wb") as target:
        while piece := source.read(FRAME_BYTES):
            target.write(call("zstd", "-q", "-c", "-3", input=piece, stdout=subprocess.PIPE).stdout)
    plain.unlink()
    return archive


def packed(directory, work):
    plain = tar(directory, work / "plain.tar")
    archive = work / "packed.tar.gz"
    with open(archive, "wb") as target:
        call("gzip", "-c", "-1", plain, stdout=target)
    plain.unlink()
    return archive


def tar(directory, archive):
    call("tar", "-C", directory, "--format=posix", "--sort=name", "--sparse", "--xattrs", "-cf", archive, ".")
    return archive


MAKERS = {"image": image, "stored": stored, "frames": frames, "packed": packed}


def call(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)
