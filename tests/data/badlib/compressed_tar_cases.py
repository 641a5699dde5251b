"""Compressed tars: bombs, truncated streams, and headers that claim more than there is."""

import bz2
import lzma
import struct
import zlib

from badlib.case import case
from badlib.compressed_tar import lz4_frame, lz4_repeated, zstd_frame
from badlib.tar import END, header, member

FIRST = b"first\n" * 20
START = member(b"first", FIRST)
RUN = 128 << 10


def head(size):
    """The start of a bomb: a complete member, and the header of a member of zeros."""
    return START + header(b"bomb", size=size)


def bomb(found):
    """A bomb is a valid archive: it is listed, and its first file is read, in bounded memory."""
    found.lists = ["bomb", "first"]
    found.keeps("first", FIRST)


def gzip(data):
    """A gzip member without name and time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


@case("bomb.tar.bz2")
def bomb_bzip2(found):
    """192 MiB of zeros in a few hundred bytes of bzip2."""
    bomb(found)
    zeros = bz2.compress(bytes(24 << 20))
    return bz2.compress(head(192 << 20)) + zeros * 8 + bz2.compress(END)


@case("bomb.tar.gz")
def bomb_gzip(found):
    """64 MiB of zeros in gzip."""
    bomb(found)
    return gzip(head(64 << 20)) + gzip(bytes(8 << 20)) * 8 + gzip(END)


@case("bomb.tar.xz")
def bomb_xz(found):
    """192 MiB of zeros in xz."""
    bomb(found)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    parts = [lzma.compress(part, filters=filters) for part in (head(192 << 20), END)]
    return parts[0] + lzma.compress(bytes(24 << 20), filters=filters) * 8 + parts[1]


@case("bomb.tar.zst")
def bomb_zstd(found):
    """192 MiB of zeros as runs of a zstd frame, which can be entered only at its start."""
    bomb(found)
    return zstd_frame([head(192 << 20), *[(b"\0", RUN)] * 1536, END])


@case("bomb.tar.lz4")
def bomb_lz4(found):
    """32 MiB of zeros as long matches of lz4."""
    bomb(found)
    block = lz4_repeated(b"\0", 4 << 20)
    return lz4_frame([(head(32 << 20), True), *[(block, False)] * 8, (END, True)])


@case("pax-bomb.tar.zst")
def pax_bomb(found):
    """A pax header of 24 MiB, of which archfs takes 16 at most, in a zstd frame of a few bytes."""
    extension = header(b"PaxHeaders/bad", size=24 << 20, kind=b"x")
    found.lists = ["bad", "first"]
    found.keeps("first", FIRST)
    says = [f"header at {len(START):#x}", "an extension of 25165824 bytes, limit 16777216"]
    found.notes(*says)
    runs = [(b"a", RUN)] * ((24 << 20) // RUN)
    return zstd_frame([START + extension, *runs, member(b"bad", b"data\n") + END])


@case("xattr-bomb.tar.zst")
def xattr_bomb(found):
    """18 members with 250 attributes of 64 KiB each, all different: more than is kept of one
    archive, in a zstd frame of 160 KiB."""
    found.memory = 1536
    found.lists = sorted(["first", *(f"m{number:02}" for number in range(18))])
    found.keeps("first", FIRST)
    found.notes("left out 2: extended attributes of members", '"m16"')
    letters = [b"%c%c" % (97 + number // 26, 97 + number % 26) for number in range(250)]
    parts, before = [], START
    for number in range(18):
        before += header(b"PaxHeaders/m%02d" % number, size=250 * 65565, kind=b"x")
        for letter in letters:
            parts.append(before + b"65565 SCHILY.xattr.user.%c%s=" % (97 + number, letter))
            parts.append((b"v", 1 << 16))
            before = b"\n"
        before += bytes(-250 * 65565 % 512) + member(b"m%02d" % number)
    return zstd_frame([*parts, before + END])


def cut(found, compressed, *says):
    """A truncated stream: everything before the cut is shown."""
    found.lists = ["first"]
    found.keeps("first", FIRST)
    found.notes(*says)
    return compressed


# Text that hardly compresses, so that half of a stream contains half of it.
NOISE = b"".join(struct.pack("<I", zlib.crc32(b"%d" % number)) for number in range(5000))
WHOLE = START + member(b"noise", NOISE) + END


@case("truncated.tar.gz")
def truncated_gzip(found):
    """The second half of a gzip stream is missing."""
    compressed = gzip(WHOLE)
    found.opens_not("gzip member at 0x0", "the file ends early", "any byte may be wrong")
    return compressed[: len(compressed) // 2]


@case("truncated.tar.bz2")
def truncated_bzip2(found):
    """The second half of a bzip2 file is missing: the second of its two streams is cut."""
    compressed = bz2.compress(START) + bz2.compress(WHOLE[len(START) :])
    return cut(found, compressed[: len(compressed) // 2], "cut off")


@case("truncated.tar.zst")
def truncated_zstd(found):
    """The second of two zstd frames is cut off."""
    compressed = zstd_frame([START]) + zstd_frame([WHOLE[len(START) :]])
    return cut(found, compressed[: len(compressed) // 2], "cut off")


@case("truncated.tar.lz4")
def truncated_lz4(found):
    """The second of two lz4 frames is cut off."""
    compressed = lz4_frame([(START, True)]) + lz4_frame([(WHOLE[len(START) :], True)])
    return cut(found, compressed[: len(compressed) // 2], "cut off")


@case("truncated.tar.xz")
def truncated_xz(found):
    """The second half of an xz file, with its index, is missing."""
    compressed = lzma.compress(START) + lzma.compress(WHOLE[len(START) :])
    return cut(found, compressed[: len(compressed) // 2], "cut off")


@case("garbage.tar.gz")
def garbage_gzip(found):
    """A gzip header, and noise behind it."""
    found.opens_not("gzip", "0x")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + NOISE[:2000]


@case("zstd-claims.tar.zst")
def zstd_claims(found):
    """The header of a zstd frame claims 2^60 bytes, and the frame has a few."""
    found.opens_not("zstd")
    return zstd_frame([START, END], size=1 << 60)


@case("zstd-window.tar.zst")
def zstd_window(found):
    """A zstd frame wants a window of 2 TiB."""
    found.opens_not("zstd")
    return zstd_frame([START, END], window_log=41)


@case("xz-index.tar.xz")
def xz_index(found):
    """The index of an xz file claims that a block decodes to 2^60 bytes."""
    found.opens_not("xz")
    compressed = lzma.compress(START + END, check=lzma.CHECK_CRC32)
    backward = (struct.unpack("<I", compressed[-8:-4])[0] + 1) * 4
    begin = len(compressed) - 12 - backward
    unpadded = number_at(compressed, begin + 2)
    body = b"\0\1" + number(unpadded) + number(1 << 60)
    body += bytes(-len(body) % 4)
    body += struct.pack("<I", zlib.crc32(body))
    footer = struct.pack("<I", len(body) // 4 - 1) + compressed[-4:-2]
    return compressed[:begin] + body + struct.pack("<I", zlib.crc32(footer)) + footer + b"YZ"


def number(value):
    """A number in xz's encoding: seven bits per byte, lowest first."""
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number_at(data, at):
    """Decodes such a number."""
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value
        at, shift = at + 1, shift + 7


@case("xz-dictionary.tar.xz")
def xz_dictionary(found):
    """A block of an xz file wants a dictionary of 4 GiB to be decoded."""
    found.opens_not("xz data in bytes 0xc to", "xz needs more than 1024 MiB")
    compressed = bytearray(lzma.compress(START + END, check=lzma.CHECK_CRC32))
    size = (compressed[12] + 1) * 4
    compressed[16] = 40
    checksum = zlib.crc32(bytes(compressed[12 : 12 + size - 4]))
    compressed[12 + size - 4 : 12 + size] = struct.pack("<I", checksum)
    return bytes(compressed)
