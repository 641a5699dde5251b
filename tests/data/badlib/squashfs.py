"""A writer of small SquashFS 4.0 images in which every field can be changed.

Everything is stored uncompressed, so a field of the image is a field of the file: `Image.put` overwrites it,
`Image.at` returns its offset. Layouts are those of squashfs_fs.h.
"""

import struct

BLOCK = 4096
METADATA = 8192
PLAIN_METADATA = 0x8000
PLAIN_DATA = 1 << 24
NONE = 0xFFFFFFFF
NO_TABLE = 0xFFFFFFFFFFFFFFFF
GZIP, LZMA, XZ = 1, 2, 4

GOOD = b"".join(b"good %06d\n" % number for number in range(40))
BAD = b"".join(b"wrong %05d\n" % number for number in range(375))
INNER = b"inner\n"
SMALL = b"small\n"

NUMBERS = {"bad": 1, "a": 2, "b": 3, "badlink": 4, "good": 5, "inner": 6, "goodlink": 7}
BADDIR, GOODDIR, ROOT = 8, 9, 10


class Part:
    """Bytes under construction, with the offsets of named fields."""

    def __init__(self):
        self.bytes = bytearray()
        self.fields = {}

    def add(self, form, value, name=None):
        """Appends a number or bytes."""
        form = f"{len(value)}s" if form == "s" else form
        if name:
            self.fields[name] = (len(self.bytes), form)
        self.bytes += struct.pack("<" + form, value)


class Image:
    """The valid image, or one with another stored block in /bad, a file of a block and a tail.

    `block` is the stored data and whether it is uncompressed. `apart` puts the inode of /bad into its own
    metadata block; `inode_block` replaces that block. `bad` is the name of /bad.
    """

    def __init__(self, compressor=GZIP, block=None, apart=False, inode_block=None, bad=b"bad"):
        self.bytes = bytearray(96)
        self.fields = {}
        self.references = {}
        self.apart, self.bad = apart, bad
        self.inodes, self.bad_inode, self.listings = Part(), Part(), Part()
        fragments = self.data(*(block or (BAD[:BLOCK], True)))
        self.all_inodes()
        inode_table = len(self.bytes)
        if apart:
            # Readers may rely on all blocks but the last being full.
            self.inodes.bytes += bytes(METADATA - len(self.inodes.bytes))
        self.metadata(self.inodes, "inodes")
        if apart:
            self.fields["bad block"] = (len(self.bytes), "H")
            if inode_block is None:
                self.metadata(self.bad_inode, "bad inode")
            else:
                self.bytes += inode_block
        directory_table = len(self.bytes)
        self.metadata(self.listings, "listings")
        fragment_table = self.table(fragments, "fragments")
        ids = Part()
        ids.add("I", 0)
        id_table = self.table(ids, "ids")
        xattr_table = self.xattrs()
        used = len(self.bytes)
        self.superblock(
            [("inode count", "I", ROOT), ("time", "I", 1), ("block size", "I", BLOCK)]
            + [("fragment count", "I", 2), ("compressor", "H", compressor)]
            + [("block log", "H", 12), ("flags", "H", 0x90B), ("id count", "H", 1)]
            + [("major", "H", 4), ("minor", "H", 0), ("root", "Q", self.references["root"])]
            + [("bytes used", "Q", used), ("id table", "Q", id_table)]
            + [("xattr table", "Q", xattr_table), ("inode table", "Q", inode_table)]
            + [("directory table", "Q", directory_table)]
            + [("fragment table", "Q", fragment_table), ("export table", "Q", NO_TABLE)]
        )

    def put(self, name, value):
        """Overwrites the field `name` with `value`."""
        at, form = self.fields[name]
        struct.pack_into("<" + form, self.bytes, at, value)
        return self

    def at(self, name):
        """The offset of the field in the image, in bytes."""
        return self.fields[name][0]

    def value(self, name):
        """The value of the field."""
        at, form = self.fields[name]
        return struct.unpack_from("<" + form, self.bytes, at)[0]

    def inode(self, name):
        """archfs's name for the inode of that name."""
        reference = self.references[name]
        block = self.value("inode table") + (reference >> 16)
        return f"inode at {block:#x}, byte {reference & 0xFFFF}"

    def file(self):
        """The image, padded to whole sectors, as a loop device requires."""
        return bytes(self.bytes) + bytes(-len(self.bytes) % 512)

    def data(self, stored, plain):
        """Writes contents; returns the records of the fragment table."""
        self.word = len(stored) | (PLAIN_DATA if plain else 0)
        self.bytes += stored
        records = Part()
        for number, parts in enumerate(([BAD[BLOCK:], SMALL], [GOOD, INNER])):
            stored = b"".join(parts)
            records.add("Q", len(self.bytes), f"fragment {number} start")
            records.add("I", len(stored) | PLAIN_DATA, f"fragment {number} word")
            records.add("I", 0)
            self.bytes += stored
        return records

    def all_inodes(self):
        """Inodes and listings; a directory comes after its contents."""
        rest = len(BAD) - BLOCK
        self.regular("bad", 96, len(BAD), 0, 0, 0, [self.word])
        self.regular("a", 0, len(SMALL), 0, rest, NONE, [])
        self.regular("b", 0, len(SMALL), 0, rest, NONE, [])
        self.link("badlink")
        self.regular("good", 0, len(GOOD), 1, 0, 1, [])
        self.regular("inner", 0, len(INNER), 1, len(GOOD), NONE, [])
        self.link("goodlink")
        self.directory("baddir", BADDIR, [("a", 2, NUMBERS["a"]), ("b", 2, NUMBERS["b"])])
        self.directory("gooddir", GOODDIR, [("inner", 2, NUMBERS["inner"])])
        entries = [("bad", 2, 1), ("baddir", 1, BADDIR), ("badlink", 3, NUMBERS["badlink"])]
        entries += [("good", 2, NUMBERS["good"]), ("gooddir", 1, GOODDIR)]
        entries += [("goodlink", 3, NUMBERS["goodlink"])]
        self.directory("root", ROOT, entries)

    def start(self, name, kind, mode, number):
        """The part that all inodes have."""
        second = self.apart and name == "bad"
        part = self.bad_inode if second else self.inodes
        block = METADATA + 2 if second else 0
        self.references[name] = block << 16 | len(part.bytes)
        for field, form, value in [
            ("type", "H", kind),
            ("mode", "H", mode),
            ("uid", "H", 0),
            ("gid", "H", 0),
            ("time", "I", 1),
            ("number", "I", number),
        ]:
            part.add(form, value, f"{name} {field}")
        return part

    def regular(self, name, start, size, fragment, offset, xattr, words):
        """An extended regular file."""
        part = self.start(name, 9, 0o644, NUMBERS[name])
        for field, form, value in [
            ("start", "Q", start),
            ("size", "Q", size),
            ("sparse", "Q", 0),
            ("links", "I", 1),
            ("fragment", "I", fragment),
            ("offset", "I", offset),
            ("xattr", "I", xattr),
        ]:
            part.add(form, value, f"{name} {field}")
        for number, word in enumerate(words):
            part.add("I", word, f"{name} word {number}")

    def link(self, name):
        """A symbolic link to good."""
        part = self.start(name, 3, 0o777, NUMBERS[name])
        part.add("I", 1, f"{name} links")
        part.add("I", 4, f"{name} size")
        part.add("s", b"good")

    def directory(self, name, number, entries):
        """An extended directory with an index of one entry, and a separate run for each entry."""
        begin = len(self.listings.bytes)
        for entry, kind, inode in entries:
            reference = self.references[entry]
            shown = self.bad if entry == "bad" else entry.encode()
            for field, form, value in [
                ("count", "I", 0),
                ("block", "I", reference >> 16),
                ("base", "I", inode),
                ("offset", "H", reference & 0xFFFF),
                ("delta", "h", 0),
                ("kind", "H", kind),
                ("name length", "H", len(shown) - 1),
                ("name", "s", shown),
            ]:
                self.listings.add(form, value, f"{name}/{entry} {field}")
        part = self.start(name, 8, 0o755, number)
        directories = sum(1 for _, kind, _ in entries if kind == 1)
        parent = ROOT + 1 if number == ROOT else ROOT
        for field, form, value in [
            ("links", "I", directories + 2),
            ("size", "I", len(self.listings.bytes) - begin + 3),
            ("block", "I", 0),
            ("parent", "I", parent),
            ("index count", "H", 1),
            ("offset", "H", begin),
            ("xattr", "I", NONE),
            ("index offset", "I", 0),
            ("index block", "I", 0),
            ("index name length", "I", len(entries[0][0]) - 1),
            ("index name", "s", entries[0][0].encode()),
        ]:
            part.add(form, value, f"{name} {field}")

    def metadata(self, part, name):
        """Appends one uncompressed metadata block; returns its offset."""
        start = len(self.bytes)
        self.fields[f"{name} header"] = (start, "H")
        self.bytes += struct.pack("<H", len(part.bytes) | PLAIN_METADATA)
        for field, (at, form) in part.fields.items():
            self.fields[field] = (len(self.bytes) + at, form)
        self.bytes += part.bytes
        return start

    def table(self, part, name):
        """Appends a metadata block and the list with its position; returns the offset of the list."""
        block = self.metadata(part, name)
        start = len(self.bytes)
        self.fields[f"{name} position"] = (start, "Q")
        self.bytes += struct.pack("<Q", block)
        return start

    def xattrs(self):
        """user.a inline and user.b out of line for bad, user.good for good."""
        pairs = Part()
        second = 0
        for number, (name, reference) in enumerate([(b"a", None), (b"b", 5), (b"good", None)]):
            second = len(pairs.bytes) if number == 2 else 0
            pairs.add("H", 0x100 if reference else 0, f"pair {number} type")
            pairs.add("H", len(name), f"pair {number} name length")
            pairs.add("s", name, f"pair {number} name")
            pairs.add("I", 8 if reference else 5, f"pair {number} size")
            if reference:
                pairs.add("Q", reference, f"pair {number} reference")
            else:
                pairs.add("s", b"value", f"pair {number} value")
        start = self.metadata(pairs, "pairs")
        ids = Part()
        for number, (reference, count, size) in enumerate([(0, 2, 24), (second, 1, 16)]):
            ids.add("Q", reference, f"xattr {number} reference")
            ids.add("I", count, f"xattr {number} count")
            ids.add("I", size, f"xattr {number} size")
        block = self.metadata(ids, "xattr ids")
        table = len(self.bytes)
        for field, form, value in [("start", "Q", start), ("count", "I", 2), ("unused", "I", 0)]:
            self.fields[f"xattr table {field}"] = (len(self.bytes), form)
            self.bytes += struct.pack("<" + form, value)
        self.fields["xattr ids position"] = (len(self.bytes), "Q")
        self.bytes += struct.pack("<Q", block)
        return table

    def superblock(self, fields):
        """Fills in the first 96 bytes."""
        at = 4
        self.bytes[:4] = b"hsqs"
        self.fields["magic"] = (0, "4s")
        for name, form, value in fields:
            self.fields[name] = (at, form)
            struct.pack_into("<" + form, self.bytes, at, value)
            at += struct.calcsize("<" + form)
