"""ZIP archives with one false statement each, between two undamaged members."""

import struct
import zlib

from badlib.case import case
from badlib.zip import Archive, deflate

FIRST = b"first\n" * 20
LAST = b"last\n" * 20


def between(found, fill, *says, lists=("first", "last")):
    """An archive with what `fill` adds between two undamaged members, for which archfs logs `says`."""
    if says:
        found.notes(*says)
    found.lists = sorted(lists)
    found.keeps("first", FIRST)
    found.keeps("last", LAST)
    archive = Archive().add(b"first", FIRST)
    fill(archive)
    return archive.deflated(b"last", LAST).end()


def refused(found, archive, *says, **end):
    """An archive that is refused."""
    found.opens_not(*says)
    return archive.end(**end)


def two():
    return Archive().add(b"first", FIRST).deflated(b"last", LAST)


@case("sound.zip")
def sound(found):
    """Nothing: the writer's own archive, to show that it is right."""
    return between(found, lambda archive: archive.add(b"real", b"data\n"), lists=("first", "last", "real"))


@case("cut.zip")
def cut(found):
    """The last byte of the archive is missing."""
    return refused(found, two(), "without the central directory at its end: cut off")[:-1]


@case("end-directory-nowhere.zip")
def directory_nowhere(found):
    """The central directory is not where its end says, and not before it."""
    return refused(found, two(), "no central directory where its end says", length=40, offset=7)


@case("end-directory-too-long.zip")
def directory_too_long(found):
    """The central directory is longer than the archive."""
    return refused(found, two(), "central directory is longer than the archive", length=1 << 30)


@case("end-split.zip")
def end_split(found):
    """The archive is the last of several parts."""
    return refused(found, two(), "a part of a split ZIP archive", disk=3, directory_disk=3)


@case("end-count.zip")
def end_count(found):
    """The end announces more entries than there are."""
    found.notes("number of entries in its end is 7, but there are 2")
    found.lists = ["first", "last"]
    found.keeps("first", FIRST)
    found.keeps("last", LAST)
    return two().end(here=7, count=7)


@case("end64-nowhere.zip")
def end64_nowhere(found):
    """The locator of the ZIP64 end record, which the end record needs, points past the end."""
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, (1 << 64) - 1, 1)
    bare = two().end(here=0xffff, count=0xffff, length=0xffffffff, offset=0xffffffff)
    found.opens_not("ZIP64 end record is not where its locator says")
    return bare[:-22] + locator + bare[-22:]


@case("end64-overflow.zip")
def end64_overflow(found):
    """The ZIP64 end record gives a central directory whose end is past 2^64."""
    archive = two()
    bare = archive.end()
    at = len(bare) - 22
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, (1 << 64) - 1, (1 << 64) - 1)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    found.opens_not("central directory is longer than the archive")
    return bare[:-22] + record + locator + bare[-22:]


@case("entry-signature.zip")
def entry_signature(found):
    """The second entry has no signature."""
    archive = two()
    second = archive.directory.index(b"PK\1\2", 4)
    archive.directory = archive.directory[:second] + b"PK\1\3" + archive.directory[second + 4:]
    return refused(found, archive, "there is no entry of the central directory")


@case("entry-cut.zip")
def entry_cut(found):
    """The name of the last entry runs past the end of the central directory."""
    archive = two()
    second = archive.directory.index(b"PK\1\2", 4)
    archive.directory = archive.directory[:second + 28] + b"\xff\x7f" + archive.directory[second + 30:]
    return refused(found, archive, "last entry of the central directory is cut off")


def false_entry(name, says, description, **fields):
    """A case with a member of 5 bytes whose entry has false `fields`, so that it is not shown."""

    def make(found):
        return between(found, lambda archive: archive.add(b"bad", b"data\n", **fields), '"bad"', says)
    make.__doc__ = description
    case(name)(make)


OUTSIDE = "its data is not within the archive"
false_entry("data-past-end.zip", OUTSIDE, "A stored member is longer than the archive.", compressed=9999, size=9999)
false_entry("header-past-end.zip", OUTSIDE, "A local header is past the end.", offset=0x7fffffff)
false_entry("header-in-directory.zip", OUTSIDE, "A local header is in the central directory.", offset=250)
false_entry("header-overflow.zip", OUTSIDE, "The offset of a local header is 2^64 - 1.", offset=0xffffffff,
            extra=struct.pack("<HHQ", 1, 8, (1 << 64) - 1))
false_entry("size-overflow.zip", "more bytes than its data can hold", "A member has 2^64 - 1 bytes.",
            method=8, size=0xffffffff, extra=struct.pack("<HHQ", 1, 8, (1 << 64) - 1))
false_entry("size-over-ratio.zip", "more bytes than its data can hold",
            "A member has one byte more than DEFLATE can make of its data.", method=8, size=5 * 1032 + 1)
false_entry("stored-lengths.zip", "its two lengths differ", "A stored member has two different lengths.", size=3)


@case("link-too-long.zip")
def link_too_long(found):
    """The target of a symbolic link has 65,537 bytes."""
    target = b"t" * 65537
    return between(found, lambda archive: archive.deflated(b"bad", target, mode=0o120777), '"bad"',
                   "too long a target")


@case("overlap.zip")
def overlap(found):
    """Two entries share the data of one member, as in a ZIP bomb."""
    archive = two()
    archive.entry(b"again", method=0, crc=zlib.crc32(FIRST), compressed=len(FIRST), size=len(FIRST), flags=0,
                  offset=0, mode=0o100644)
    return refused(found, archive, "members overlap: a ZIP bomb, or damage")


@case("overlap-quoted.zip")
def overlap_quoted(found):
    """The data of a member contains the next member, in a stored block of DEFLATE."""
    inner = Archive().deflated(b"inner", b"i" * 100)
    header = inner.bytes
    block = b"\0" + struct.pack("<HH", len(header), len(header) ^ 0xffff)
    data = block + header
    archive = Archive().add(b"first", data[:len(block)] + header, method=8, crc=0, size=len(header))
    offset = archive.bytes.index(header)
    archive.entry(b"inner", method=8, crc=zlib.crc32(b"i" * 100), compressed=len(deflate(b"i" * 100)), size=100,
                  flags=0, offset=offset, mode=0o100644)
    return refused(found, archive, "members overlap: a ZIP bomb, or damage")


def false_header(name, description, says, **local):
    """A case with a member of 5 bytes whose local header has false fields, so that it cannot be read."""

    def make(found):
        found.fails("read", "bad", says)
        return between(found, lambda archive: archive.add(b"bad", b"data\n", local=local),
                       lists=("bad", "first", "last"))
    make.__doc__ = description
    case(name)(make)


false_header("local-signature.zip", "A local header has no signature.", "there is no local header",
             signature=b"PK\3\5")
false_header("local-method.zip", "A local header has another method.", "another compression method", method=8)


@case("local-too-long.zip")
def local_too_long(found):
    """A local header has an extra field that reaches into the central directory."""
    found.fails("read", "bad", "its data runs into the central directory")
    archive = Archive().add(b"first", FIRST).deflated(b"last", LAST)
    archive.add(b"bad", b"data\n")
    length = archive.bytes.rindex(b"PK\3\4") + 28
    archive.bytes = archive.bytes[:length] + b"\xff\xff" + archive.bytes[length + 2:]
    found.lists = ["bad", "first", "last"]
    found.keeps("first", FIRST)
    found.keeps("last", LAST)
    return archive.end()


@case("deflate-garbage.zip")
def deflate_garbage(found):
    """The data of a member is not DEFLATE."""
    found.fails("read", "bad", "deflate cannot decode it")
    return between(found, lambda archive: archive.add(b"bad", b"\xff" * 50, method=8, size=60),
                   lists=("bad", "first", "last"))


@case("deflate-too-long.zip")
def deflate_too_long(found):
    """A member decodes to more bytes than its entry announces."""
    found.fails("read", "bad", "deflate cannot decode it")
    return between(found, lambda archive: archive.deflated(b"bad", b"x" * 1000, size=999),
                   lists=("bad", "first", "last"))


@case("deflate-short.zip")
def deflate_short(found):
    """A member decodes to fewer bytes than its entry announces."""
    found.fails("read", "bad", "1001 bytes announced, 1000 found")
    return between(found, lambda archive: archive.deflated(b"bad", b"x" * 1000, size=1001),
                   lists=("bad", "first", "last"))


@case("deflate-checksum.zip")
def deflate_checksum(found):
    """The checksum of a compressed member is wrong by one bit."""
    data = b"some text\n" * 99
    found.fails("read", "bad", "checksum (CRC-32) is wrong")
    return between(found, lambda archive: archive.deflated(b"bad", data, crc=zlib.crc32(data) ^ 1),
                   lists=("bad", "first", "last"))


@case("large-short.zip")
def large_short(found):
    """A member of 16 MiB, which gets seek points, has a byte less than its entry announces."""
    found.fails("read", "bad", "16777217 bytes announced")
    data = bytes(16 << 20)
    return between(found, lambda archive: archive.deflated(b"bad", data, size=len(data) + 1),
                   lists=("bad", "first", "last"))


@case("large-checksum.zip")
def large_checksum(found):
    """The checksum of a member of 16 MiB is wrong by one bit."""
    found.fails("read", "bad", "checksum")
    data = bytes(16 << 20)
    return between(found, lambda archive: archive.deflated(b"bad", data, crc=zlib.crc32(data) ^ 1),
                   lists=("bad", "first", "last"))


@case("bomb.zip")
def bomb(found):
    """A member of 192 MiB of zeros, in 200 KB."""
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    crc, data = 0, b""
    zeros = bytes(1 << 20)
    for _ in range(192):
        crc = zlib.crc32(zeros, crc)
        data += encoder.compress(zeros)
    data += encoder.flush()
    found.healthy["bomb"] = {"length": 192 << 20, "crc32": crc}
    return between(found, lambda archive: archive.add(b"bomb", data, method=8, crc=crc, size=192 << 20),
                   lists=("bomb", "first", "last"))


@case("encrypted.zip")
def encrypted(found):
    """A member is encrypted."""
    return between(found, lambda archive: archive.add(b"bad", b"data\n", flags=1), "left out 1: encrypted files",
                   '"bad"')


@case("method-unknown.zip")
def method_unknown(found):
    """A member has an undefined compression method."""
    return between(found, lambda archive: archive.add(b"bad", b"data\n", method=77),
                   "left out 1: files compressed with an unknown method", '"bad"')


@case("name-outside.zip")
def name_outside(found):
    """A name leads out of the archive."""
    return between(found, lambda archive: archive.add(b"../../etc/bad", b"data\n"),
                   lists=("etc", "etc/bad", "first", "last"))


@case("name-nul.zip")
def name_nul(found):
    """A name contains a NUL."""
    return between(found, lambda archive: archive.add(b"bad\0name", b"data\n"), "left out 1", "not valid on Linux")


@case("name-long.zip")
def name_long(found):
    """A component of a name has 256 bytes."""
    return between(found, lambda archive: archive.add(b"n" * 256, b"data\n"), "left out 1", "not valid on Linux")


@case("path-long.zip")
def path_long(found):
    """A path has 32,769 bytes."""
    path = b"d/" * 16384 + b"f"
    return between(found, lambda archive: archive.add(path, b"data\n"), "left out 1: paths over 32768 bytes")
