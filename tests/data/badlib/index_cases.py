"""Saved indexes with wrong contents, and a valid checksum unless a case says otherwise.

The archive next to each is undamaged, so whatever the index says, the answers must be the archive's.
"""

import struct
import zlib

from badlib.blake3 import blake3
from badlib.case import case
from badlib.tar import END, member

# Bytes of data per checksum.
BLOCK = 16384

ONE, TWO = b"one\n" * 10, b"two\n" * 10
ARCHIVE = member(b"folder/one", ONE) + member(b"two", TWO) + END
MODIFIED = 1_000_000_000
STORED, SPARSE, DIRECTORY, SYMLINK, LINK = 1, 2, 3, 4, 8


# Bytes of a node.
NODE = 52

# The number of the blocks before the data of a member, and their CRC-32.
NO_HEADERS = struct.pack("<BI", 0, 0)

# The names of the nodes, concatenated.
NAMES = b"foldertwoone"
DIRECTORY_NAME, TWO_NAME, ONE_NAME = (0, 6), (6, 3), (9, 3)


def node(name, kind, size, content, mode=0o644, parent=0, nanoseconds=0):
    """A node; `name` is the offset and length of its name. Nothing is said about the headers of the member."""
    head = struct.pack("<IBHII", *name, kind << 12 | mode, parent, nanoseconds)
    return head + struct.pack("<qIIQQ", 1, 0, 0, size, content) + NO_HEADERS


class Index:
    """The index of `ARCHIVE`, part by part."""

    def __init__(self):
        self.length = len(ARCHIVE)
        self.samples = [(0, blake3(ARCHIVE[:512]))]
        self.seek_points = b""
        self.decoded = len(ARCHIVE)
        self.names = NAMES
        self.nodes = [
            node((0, 0), DIRECTORY, 2, 1, 0o755),
            node(DIRECTORY_NAME, DIRECTORY, 1, 3, 0o755),
            node(TWO_NAME, STORED, len(TWO), 1536),
            node(ONE_NAME, STORED, len(ONE), 512, parent=1),
        ]
        self.segments, self.maps, self.links, self.with_xattrs = [], [], [], []
        self.xattrs = b""
        self.nested_archives = []
        self.node_bytes = None
        self.checksum = 0
        self.block_checksum = 0

    def sections(self):
        """The parts of the data."""

        def table(form, rows):
            return b"".join(struct.pack(form, *row) for row in rows)

        images = (
            struct.pack("<QQ", at, len_) + NO_HEADERS + struct.pack("<Q", len(path)) + path
            for at, len_, path in self.nested_archives
        )
        return [
            b"".join(self.nodes),
            self.names,
            table("<QQQ", self.segments),
            table("<QIQ", self.maps),
            table("<II", self.links),
            table("<IQ", self.with_xattrs),
            self.xattrs,
            b"".join(images),
            b"",
            self.seek_points,
        ]

    def bytes(self):
        """The bytes of the index."""
        start = b"ARCHFSIX" + struct.pack("<IIQqI", 5, 0, self.length, MODIFIED, 0)
        # Its file, which does not count beside the archive in a directory of the user.
        start += struct.pack("<QQqII", 0, 0, 0, 0, 0)
        start += struct.pack("<I", len(self.samples))
        start += b"".join(struct.pack("<Q32s", *sample) for sample in self.samples)
        sections = self.sections()
        data = b"".join(sections)
        assert len(data) <= BLOCK
        sums = struct.pack("<I", (zlib.crc32(data) + self.block_checksum) % (1 << 32))
        lengths = [len(section) for section in sections]
        if self.node_bytes is not None:
            lengths[0] = self.node_bytes
        tail = struct.pack("<11Q", self.decoded, *lengths)
        digest = bytearray(blake3(start + sums + tail))
        digest[0] = (digest[0] + self.checksum) % 256
        return start + data + sums + tail + digest


def lies(name, breaks, change, says):
    """A case: the archive `name` with an index next to it that `change` modifies."""

    def function(found):
        index = Index()
        change(index)
        beside = index if isinstance(index, bytes) else index.bytes()
        found.files[name + ".archfs-index"] = beside
        found.modified = MODIFIED
        found.lists = ["folder", "folder/one", "two"]
        found.keeps("folder/one", ONE)
        found.keeps("two", TWO)
        if says:
            found.notes(f"{name}.archfs-index", says, "made again")
        return ARCHIVE

    function.__doc__ = breaks
    case(name)(function)


def set_node(number, *fields, **more):
    """Modifies one node."""

    def change(index):
        index.nodes[number] = node(*fields, **more)

    return change


def set_to(**fields):
    """Modifies other fields."""

    def change(index):
        index.__dict__.update(fields)

    return change


def sparse(pieces):
    """Turns the last node into a sparse file."""

    def change(index):
        index.nodes[3] = node(ONE_NAME, SPARSE, 100, 0, parent=1)
        stored = sum(piece[1] for piece in pieces)
        index.segments, index.maps = pieces, [(len(pieces), 3, stored)]

    return change


OUTSIDE = "its bytes lie outside the archive"
NO_CHILDREN = "its children are not where they should be"
NO_LISTING = "its children are not a listing"
NO_XATTRS = "attributes in the index are not valid"

lies("index-sound.tar", "Nothing: an index as archfs writes it.", lambda index: None, None)
lies(
    "index-past-end.tar",
    "The index says that a file goes on past the end of the archive.",
    set_node(2, TWO_NAME, STORED, 4096, 1536),
    f"node 2: {OUTSIDE}",
)
lies(
    "index-offset-overflow.tar",
    "The index says that a file begins just before 2^64.",
    set_node(2, TWO_NAME, STORED, 100, (1 << 64) - 50),
    f"node 2: {OUTSIDE}",
)
lies(
    "index-size-max.tar",
    "The index says that a file has 2^63 bytes.",
    set_node(2, TWO_NAME, STORED, 1 << 63, 0),
    "node 2: it is not of a known type",
)
lies(
    "index-kind.tar",
    "The index has a node of a kind that there is not.",
    set_node(2, TWO_NAME, 15, 0, 0),
    "node 2: it is not of a known type",
)
lies(
    "index-cycle.tar",
    "The index has a directory whose child is the root.",
    set_node(1, DIRECTORY_NAME, DIRECTORY, 1, 0, 0o755),
    "node 1: its children are not where they should be",
)
lies(
    "index-children-shared.tar",
    "The index has two directories with the same child.",
    set_node(2, TWO_NAME, DIRECTORY, 1, 3, 0o755),
    "node 2: its children are not where they should be",
)
lies(
    "index-children-past-end.tar",
    "The index has a directory with more children than there are nodes.",
    set_node(1, DIRECTORY_NAME, DIRECTORY, 1000, 3, 0o755),
    f"node 1: {NO_CHILDREN}",
)
lies(
    "index-other-folder.tar",
    "The index has a directory whose child says that it is in another one.",
    set_node(3, ONE_NAME, STORED, len(ONE), 512, parent=0),
    "node 3: it is in another directory",
)
lies(
    "index-orphan.tar",
    "The index has a node that is in no directory.",
    set_node(1, DIRECTORY_NAME, STORED, 0, 0),
    "some nodes are in no directory",
)
lies(
    "index-name-nowhere.tar",
    "The index has a name past the end of all names.",
    set_node(3, (4096, 3), STORED, len(ONE), 512, parent=1),
    "node 3: its name is missing",
)
lies(
    "index-name-slash.tar",
    "The index has a name with a slash in it.",
    set_to(names=b"fold/rtwoone"),
    f"node 0: {NO_LISTING}",
)
lies(
    "index-name-twice.tar",
    "The index has the same name twice in one directory.",
    set_node(2, DIRECTORY_NAME, STORED, len(TWO), 1536),
    f"node 0: {NO_LISTING}",
)
lies(
    "index-link-to-folder.tar",
    "The index has a hard link to a directory.",
    set_node(2, TWO_NAME, LINK, 0, 1),
    "node 2: it names nothing",
)
lies(
    "index-link-to-itself.tar",
    "The index has a hard link to itself.",
    set_node(2, TWO_NAME, LINK, 0, 2),
    "node 2: it names nothing",
)
lies(
    "index-symlink-nowhere.tar",
    "The index has a symbolic link whose target lies past the end of all names.",
    set_node(2, TWO_NAME, SYMLINK, 10, 4096),
    "node 2: its target is missing",
)
lies(
    "index-map-past-end.tar",
    "The index has a sparse file with a piece past the end of the archive.",
    sparse([(0, 50, 1 << 40)]),
    "segment 0: its bytes lie outside the archive",
)
lies(
    "index-map-overlaps.tar",
    "The index has a sparse file whose pieces overlap.",
    sparse([(0, 50, 512), (49, 10, 512)]),
    "segment 1: it is out of order",
)
lies(
    "index-map-past-size.tar",
    "The index has a sparse file with a piece past its size.",
    sparse([(90, 50, 512)]),
    "segment 0: it lies outside its file",
)
lies(
    "index-xattrs-nowhere.tar",
    "The index has attributes past the end of all.",
    set_to(with_xattrs=[(2, 4096)]),
    NO_XATTRS,
)
lies(
    "index-xattrs-count.tar",
    "The index has a set of 2^32 - 1 attributes.",
    set_to(with_xattrs=[(2, 0)], xattrs=b"\xff\xff\xff\xff"),
    "the index points past the end of its attributes",
)
lies(
    "index-nested-image-nowhere.tar",
    "The index has an image past the end of the archive.",
    set_to(nested_archives=[(1 << 40, 4096, b"folder")]),
    "a nested archive lies outside the outer one or the tree",
)
lies(
    "index-count.tar",
    "The index claims 2^40 nodes.",
    set_to(node_bytes=NODE << 40),
    "more nodes than have numbers",
)
lies(
    "index-count-overflow.tar",
    "The index claims nodes of 2^64 - 1 bytes, which with the other parts overflow.",
    set_to(node_bytes=(1 << 64) - 1),
    "the nodes of the index end in the middle of one",
)
lies(
    "index-count-more.tar",
    "The index claims a node more than there are.",
    set_to(node_bytes=5 * NODE),
    "the parts of the index do not make up the file",
)
lies(
    "index-decoded-length.tar",
    "The index says that the archive is longer than it is, and a file lies there.",
    set_to(decoded=1 << 40),
    "not used: it belongs to a compressed archive",
)
lies(
    "index-seek-points.tar",
    "The index of a stored archive has what a compressed one needs.",
    set_to(seek_points=b"nonsense"),
    "not used: it belongs to a compressed archive",
)
lies(
    "index-sample-nowhere.tar",
    "The index has a sample past the end of the archive.",
    set_to(samples=[(1 << 40, bytes(32))]),
    "0x10000000000",
)
lies(
    "index-checksum.tar",
    "The hash of the index is wrong by one.",
    set_to(checksum=1),
    "the index is damaged: its hash is wrong",
)
lies(
    "index-block-checksum.tar",
    "The checksum of the only block is wrong by one.",
    set_to(block_checksum=1),
    "the index is damaged",
)
