"""SquashFS images with false superblocks, tables or attributes."""

import lzma
import struct
import zlib

from badlib.case import case
from badlib.squashfs import BAD, BLOCK, LZMA, XZ, Image
from badlib.squashfs_cases import broken, fragment_broken, sound


@case("block-size-0.sqfs")
def block_size_0(found):
    """Blocks have 0 bytes."""
    found.opens_not("superblock", "block size 0, valid are 4096 to 1048576")
    return Image().put("block size", 0).put("block log", 0).file()


@case("block-size-2-mib.sqfs")
def block_size_2_mib(found):
    """Blocks have 2 MiB, more than the format has."""
    found.opens_not("superblock", "block size 2097152, valid are 4096 to 1048576")
    return Image().put("block size", 2 << 20).put("block log", 21).file()


@case("block-size-log.sqfs")
def block_size_log(found):
    """The logarithm of the block size is that of another size."""
    found.opens_not("superblock", "block size 4096 is not 2 to the power of its logarithm 13")
    return Image().put("block log", 13).file()


@case("bytes-used-over.sqfs")
def bytes_used_over(found):
    """The superblock claims more bytes than the file has."""
    image = Image().put("bytes used", 1 << 40)
    found.opens_not("truncated", f"1099511627776 bytes, the file only {len(image.file())}")
    return image.file()


@case("bytes-used-under.sqfs")
def bytes_used_under(found):
    """The superblock claims that the image ends before its tables."""
    image = Image().put("bytes used", 3000)
    found.opens_not("superblock: the id table is outside the image")
    return image.file()


@case("bytes-used-overflow.sqfs")
def bytes_used_overflow(found):
    """The superblock claims 2^64 - 1 bytes."""
    found.opens_not("truncated", "18446744073709551615 bytes")
    return Image().put("bytes used", (1 << 64) - 1).file()


@case("truncated.sqfs")
def truncated(found):
    """The last 512 bytes are missing, as of a copy that broke off."""
    image = Image()
    kept = bytes(image.bytes)[:-512]
    found.opens_not("truncated", f"the file only {len(kept)}")
    return kept


@case("fragment-count.sqfs")
def fragment_count(found):
    """The superblock claims a million fragments, for which the file is too short."""
    image = Image().put("fragment count", 1_000_000)
    where = image.value("fragment table")
    found.opens_not("fragment table: past the end of the image", f"{where:#x}")
    return image.file()


@case("fragment-count-max.sqfs")
def fragment_count_max(found):
    """The superblock claims 2^32 - 1 fragments: 64 MiB of positions."""
    image = Image().put("fragment count", 0xFFFFFFFF)
    where = image.value("fragment table")
    found.opens_not("fragment table: past the end of the image", f"{where:#x}")
    return image.file()


@case("id-count.sqfs")
def id_count(found):
    """The superblock claims 2000 owners, and their block holds one."""
    image = Image().put("id count", 2000)
    found.opens_not("metadata block at 0x")
    return image.file()


@case("id-count-0.sqfs")
def id_count_0(found):
    """The superblock claims that there are no owners."""
    found.opens_not("superblock: no owners")
    return Image().put("id count", 0).file()


@case("id-table-nowhere.sqfs")
def id_table_nowhere(found):
    """The list of the blocks of owners points past the end of the image."""
    image = Image().put("ids position", 1 << 40)
    found.opens_not("metadata block at 0x10000000000", "past the end of the image")
    return image.file()


@case("root-nowhere.sqfs")
def root_nowhere(found):
    """The root's inode lies past the end of the image."""
    image = Image().put("root", 1 << 40)
    where = image.value("inode table") + (1 << 24)
    found.opens_not(f"metadata block at {where:#x}", "past the end of the image")
    return image.file()


@case("root-is-a-file.sqfs")
def root_is_a_file(found):
    """The root's inode is that of a file."""
    image = Image()
    image.put("root", image.references["good"])
    found.opens_not("the root is not a directory but a regular file")
    return image.file()


@case("tables-swapped.sqfs")
def tables_swapped(found):
    """The inode table lies behind the directory table."""
    image = Image()
    inodes, listings = image.value("inode table"), image.value("directory table")
    found.opens_not("superblock: the inode table comes after the directory table")
    return image.put("inode table", listings).put("directory table", inodes).file()


@case("fragment-table-nowhere.sqfs")
def fragment_table_nowhere(found):
    """The list of the blocks of the fragment table points past the end of the image."""
    image = fragment_broken(found).put("fragments position", 1 << 40)
    del found.healthy["good"], found.healthy["gooddir/inner"]
    found.fails("read", "bad", image.inode("bad"), "metadata block at 0x10000000000")
    return image.file()


@case("xattr-count.sqfs")
def xattr_count(found):
    """The table of attributes claims 2^32 - 1 records."""
    image = Image().put("xattr table count", 0xFFFFFFFF)
    found.opens_not("xattr id table: past the end of the image", f"{image.value('xattr table') + 16:#x}")
    return image.file()


@case("xattr-start-nowhere.sqfs")
def xattr_start_nowhere(found):
    """The table of attributes says that they lie past the end of the image."""
    image = Image().put("xattr table start", 1 << 40)
    found.opens_not("xattr table: past the end of the image", "0x10000000000")
    return image.file()


@case("xattr-value-nowhere.sqfs")
def xattr_value_nowhere(found):
    """The value of user.b of /bad is said to lie past the end of the image."""
    image = sound(found).put("pair 1 reference", 1 << 40)
    where = image.value("xattr table start") + (1 << 24)
    found.fails("xattr:user.b", "bad", image.inode("bad"), f"metadata block at {where:#x}")
    return image.file()


@case("xattr-value-cursor.sqfs")
def xattr_value_cursor(found):
    """The value of user.b of /bad is said to be at byte 8000 of a block that is shorter."""
    image = sound(found).put("pair 1 reference", 8000)
    found.fails("xattr:user.b", "bad", image.inode("bad"), "shorter than a reference to it")
    return image.file()


@case("xattr-reference-size.sqfs")
def xattr_reference_size(found):
    """The reference to the value of user.b of /bad claims 9 bytes instead of 8."""
    image = sound(found).put("pair 1 size", 9)
    found.fails("xattr:user.b", "bad", image.inode("bad"), "reference to a value has 9 bytes")
    return image.file()


@case("xattr-value-too-long.sqfs")
def xattr_value_too_long(found):
    """The value of user.a of /bad claims a byte more than 64 KiB."""
    image = sound(found).put("pair 0 size", (64 << 10) + 1)
    found.fails("xattr:user.a", "bad", image.inode("bad"), "value of 65537 bytes, limit 65536")
    return image.file()


@case("xattr-type.sqfs")
def xattr_type(found):
    """An attribute of /bad has a prefix of number 7."""
    image = sound(found).put("pair 0 type", 7)
    found.fails("xattr:user.a", "bad", image.inode("bad"), "xattr of type 7, valid are 0 to 2")
    return image.file()


@case("xattr-past-count.sqfs")
def xattr_past_count(found):
    """/bad has the attributes of number 2, and there are 2: 0 and 1."""
    image = sound(found).put("bad xattr", 2)
    says = "xattr id 2 referenced, but there are 2"
    found.fails("xattr:user.a", "bad", image.inode("bad"), says)
    return image.file()


@case("xattr-pairs-max.sqfs")
def xattr_pairs_max(found):
    """/bad claims 2^32 - 1 attributes."""
    image = sound(found).put("xattr 0 count", 0xFFFFFFFF)
    found.fails("xattr:user.no", "bad", image.inode("bad"), "xattr")
    return image.file()


@case("xz-dictionary.sqfs")
def xz_dictionary(found):
    """The block of /bad, of an xz image, wants a dictionary of 4 GiB to be decoded."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 4096}]
    packed = bytearray(lzma.compress(BAD[:BLOCK], check=lzma.CHECK_CRC32, filters=filters))
    # Behind 12 bytes of the stream's header: sizes, the filter's number, its length, its property.
    size = (packed[12] + 1) * 4
    packed[16] = 40
    header = bytes(packed[12 : 12 + size - 4])
    packed[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(header))
    image = broken(found, compressor=XZ, block=(bytes(packed), False))
    found.fails("read", "bad", "data block at 0x60", "xz cannot decode it", "memory")
    return image.file()


@case("lzma-dictionary.sqfs")
def lzma_dictionary(found):
    """The block of /bad, of an lzma image, wants a dictionary of 3 GiB to be decoded."""
    packed = bytearray(lzma.compress(BAD[:BLOCK], format=lzma.FORMAT_ALONE))
    packed[1:5] = struct.pack("<I", 3 << 30)
    image = broken(found, compressor=LZMA, block=(bytes(packed), False))
    found.fails("read", "bad", "data block at 0x60", "lzma cannot decode it", "memory")
    return image.file()
