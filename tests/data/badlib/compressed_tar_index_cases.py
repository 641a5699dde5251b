"""Saved indexes of compressed tars with false seek points, and a valid checksum."""

import struct
import zlib

from badlib.blake3 import blake3
from badlib.case import case
from badlib.index_cases import ARCHIVE, MODIFIED, ONE, STORED, TWO, TWO_NAME, Index, node

GZIP, XZ = 1, 3
POINTS, SPOOLED = 1, 3


def compressed():
    """The archive as one gzip member."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(ARCHIVE) + packer.flush()


def seek_points(length=len(ARCHIVE), points=((0, 0, b""),), container=GZIP, count=None):
    """What archfs writes for a gzip file: uncompressed offset, bit, and window of each point."""
    out = struct.pack("<BBQQ", container, POINTS, length, len(points) if count is None else count)
    for decoded, bit, window in points:
        out += struct.pack("<QQH", decoded, bit, 32768 if window else 0)
        out += struct.pack("<I", len(window)) + window if window else b""
    return out


def beside(found, points, decoded=len(ARCHIVE), change=None):
    """The archive, and an index next to it with these seek points."""
    archive = compressed()
    index = Index()
    index.length = len(archive)
    index.samples = [(0, blake3(archive[:512]))] if len(archive) >= 512 else []
    index.seek_points, index.decoded = points, decoded
    if change:
        change(index)
    found.files[found.name + ".archfs-index"] = index.bytes()
    found.modified = MODIFIED
    found.lists = ["folder", "folder/one", "two"]
    found.keeps("folder/one", ONE)
    found.keeps("two", TWO)
    return archive


def lies(name, breaks, points, says, decoded=len(ARCHIVE)):
    """A case whose index is rejected, so that the archive's own contents are shown."""

    def function(found):
        if says:
            found.notes(f"{name}.archfs-index", says, "made again")
        return beside(found, points, decoded)

    function.__doc__ = breaks
    case(name)(function)


lies("points-sound.tar.gz", "Nothing: seek points as archfs writes them.", seek_points(), None)
lies(
    "points-past-end.tar.gz",
    "A seek point lies past the end of the file.",
    seek_points(points=[(0, 0, b""), (512, 1 << 40, b"x")]),
    "bit 1099511627776 out of place",
)
lies(
    "points-count.tar.gz",
    "The seek points claim to be 2^63.",
    seek_points(count=1 << 63),
    "seek points",
)
lies(
    "points-container.tar.gz",
    "The seek points of a gzip file are said to be those of an xz file.",
    seek_points(container=XZ),
    "seek points of kind 1",
)
lies(
    "points-chunk.tar.gz",
    "A chunk between two seek points has 2^62 bytes.",
    seek_points(length=1 << 62),
    "seek points",
    decoded=1 << 62,
)
lies(
    "points-other-length.tar.gz",
    "The seek points end elsewhere than the tree.",
    seek_points(length=len(ARCHIVE) + 512),
    "its seek points belong to another archive",
)


@case("points-spooled.tar.gz")
def spooled(found):
    """The index says that the file must be decoded forward and has a GiB, and that a member lies
    where the decoded bytes have long ended."""

    def change(index):
        index.nodes[2] = node(TWO_NAME, STORED, len(TWO), 1 << 29)

    archive = beside(found, struct.pack("<BBQ", GZIP, SPOOLED, 1 << 30), 1 << 30, change)
    del found.healthy["two"]
    found.fails("read", "two", "the decompressed data is shorter than recorded")
    return archive


@case("points-longer.tar.gz")
def longer(found):
    """The index says that a chunk has 4096 bytes more than it decodes to, and that a member lies
    there."""

    def change(index):
        index.nodes[2] = node(TWO_NAME, STORED, len(TWO), len(ARCHIVE) + 512)

    archive = beside(found, seek_points(len(ARCHIVE) + 4096), len(ARCHIVE) + 4096, change)
    # The chunk as a whole is wrong, so none of it is trusted.
    found.healthy.clear()
    says = f"{len(ARCHIVE) + 4096} bytes needed, {len(ARCHIVE)} found"
    found.fails("read", "two", says, "bit 0x0")
    found.fails("read", "folder/one", says)
    return archive
