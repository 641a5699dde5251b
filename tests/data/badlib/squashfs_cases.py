"""SquashFS images with one false statement each, outside file contents."""

import struct
import zlib

from badlib.case import case
from badlib.squashfs import BAD, BADDIR, BLOCK, GOOD, INNER, PLAIN_DATA, SMALL, Image


def sound(found, **changes):
    """The valid image; `found.healthy` unless a case says otherwise."""
    found.keeps("bad", BAD)
    kept(found)
    return Image(**changes)


def kept(found):
    """What is never damaged."""
    for path, contents in [("good", GOOD), ("gooddir/inner", INNER), ("baddir/a", SMALL)]:
        found.keeps(path, contents)


def broken(found, **changes):
    """The valid image, in which the case breaks /bad."""
    kept(found)
    return Image(**changes)


@case("sound.sqfs")
def sound_image(found):
    """Nothing: the writer's own image, to show that it is right."""
    found.sound_for_others = True
    return sound(found).file()


@case("sound-apart.sqfs")
def sound_apart(found):
    """Nothing; the inode of /bad lies in a metadata block of its own."""
    found.sound_for_others = True
    return sound(found, apart=True).file()


@case("sound-packed.sqfs")
def sound_packed(found):
    """Nothing; the block of /bad is compressed."""
    found.sound_for_others = True
    return sound(found, block=(zlib.compress(BAD[:BLOCK], 9), False)).file()


@case("cursor-past-block.sqfs")
def cursor_past_block(found):
    """The entry of /bad says that its inode is at byte 8000 of a metadata block that is shorter."""
    image = broken(found).put("root/bad offset", 8000)
    block = image.at("inodes header")
    found.fails("stat", "bad", f"metadata block at {block:#x} has", "shorter than a reference to it")
    return image.file()


@case("inode-nowhere.sqfs")
def inode_nowhere(found):
    """The entry of /bad says that its inode is in a block past the end of the image."""
    image = broken(found).put("root/bad block", 1 << 30)
    block = image.value("inode table") + (1 << 30)
    found.fails("stat", "bad", f"metadata block at {block:#x}", "past the end of the image")
    return image.file()


@case("metadata-too-long.sqfs")
def metadata_too_long(found):
    """The metadata block of the inode of /bad claims 9000 bytes, more than 8 KiB."""
    image = broken(found, apart=True).put("bad block", 9000 | 0x8000)
    where = image.at("bad block")
    found.fails("stat", "bad", f"metadata block at {where:#x}", "claims 9000 bytes")
    return image.file()


@case("metadata-empty.sqfs")
def metadata_empty(found):
    """The metadata block of the inode of /bad claims 0 bytes."""
    image = broken(found, apart=True).put("bad block", 0x8000)
    where = image.at("bad block")
    found.fails("stat", "bad", f"metadata block at {where:#x}", "claims 0 bytes")
    return image.file()


@case("metadata-bomb.sqfs")
def metadata_bomb(found):
    """The metadata block of the inode of /bad decodes to 1 MiB."""
    packed = zlib.compress(bytes(1 << 20), 9)
    image = broken(found, apart=True, inode_block=struct.pack("<H", len(packed)) + packed)
    where = image.at("bad block")
    found.fails("stat", "bad", f"metadata block at {where:#x}", "gzip cannot decode it")
    return image.file()


@case("metadata-garbage.sqfs")
def metadata_garbage(found):
    """The metadata block of the inode of /bad is said to be compressed, and is not."""
    image = broken(found, apart=True)
    image.put("bad block", image.value("bad block") & 0x7FFF)
    where = image.at("bad block")
    found.fails("stat", "bad", f"metadata block at {where:#x}", "gzip cannot decode it")
    return image.file()


@case("block-too-long.sqfs")
def block_too_long(found):
    """The compressed block of /bad claims 5000 bytes in an image with blocks of 4096."""
    image = broken(found).put("bad word 0", 5000)
    found.fails("read", "bad", "data block at 0x60", "claims 5000 bytes, limit 4096")
    return image.file()


@case("block-plain-too-long.sqfs")
def block_plain_too_long(found):
    """The plain block of /bad claims 5000 bytes in an image with blocks of 4096."""
    image = broken(found).put("bad word 0", 5000 | PLAIN_DATA)
    found.fails("read", "bad", "data block at 0x60", "has 5000 bytes, the file needs 4096")
    return image.file()


@case("block-short.sqfs")
def block_short(found):
    """The block of /bad decodes to 100 bytes, and the file needs 4096."""
    image = broken(found, block=(zlib.compress(BAD[:100], 9), False))
    found.fails("read", "bad", "data block at 0x60", "has 100 bytes, the file needs 4096")
    return image.file()


@case("block-bomb.sqfs")
def block_bomb(found):
    """The block of /bad decodes to 3 MiB, and blocks have 4096 bytes."""
    image = broken(found, block=(zlib.compress(bytes(3 << 20), 9), False))
    found.fails("read", "bad", "data block at 0x60", "gzip cannot decode it")
    return image.file()


@case("block-garbage.sqfs")
def block_garbage(found):
    """The block of /bad is said to be compressed, and is text."""
    image = broken(found).put("bad word 0", BLOCK)
    found.fails("read", "bad", "data block at 0x60", "gzip cannot decode it")
    return image.file()


@case("block-nowhere.sqfs")
def block_nowhere(found):
    """The block of /bad starts a TiB past the end of the image."""
    image = broken(found).put("bad start", 1 << 40)
    found.fails("read", "bad", image.inode("bad"), "0x10000000000")
    return image.file()


@case("block-overflow.sqfs")
def block_overflow(found):
    """The block of /bad starts 16 bytes before 2^64, so that its end overflows."""
    image = broken(found).put("bad start", (1 << 64) - 16)
    found.fails("read", "bad", image.inode("bad"), "0xfffffffffffffff0")
    return image.file()


@case("block-in-superblock.sqfs")
def block_in_superblock(found):
    """The block of /bad starts at byte 0: the file would be the image itself."""
    image = broken(found).put("bad start", 0)
    found.fails("read", "bad", image.inode("bad"), "data block at 0x0", "superblock")
    return image.file()


@case("image-in-itself.sqfs")
def image_in_itself(found):
    """A file with the name of an image is the image itself, which --recursive would open as a
    directory, and in that again."""
    found.options = ["--recursive"]
    image = broken(found, bad=b"bad.sqfs").put("bad start", 0)
    found.lists = ["bad.sqfs", "baddir", "baddir/a", "baddir/b", "badlink", "good", "gooddir"]
    found.lists += ["gooddir/inner", "goodlink"]
    found.fails("read", "bad.sqfs", image.inode("bad"), "data block at 0x0", "superblock")
    return image.file()


@case("block-behind-image.sqfs")
def block_behind_image(found):
    """The block of /bad lies behind the image, where the file holds something else."""
    image = broken(found)
    used = image.value("bytes used")
    image.put("bad start", used)
    found.fails("read", "bad", image.inode("bad"), f"{used:#x}")
    return bytes(image.bytes) + b"a secret of somebody else\n" * 400


@case("fragment-at-count.sqfs")
def fragment_at_count(found):
    """The tail of /bad lies in fragment 2, and there are 2: 0 and 1."""
    image = broken(found).put("bad fragment", 2)
    found.fails("read", "bad", image.inode("bad"), "fragment 2 referenced, but there are 2")
    return image.file()


@case("fragment-offset-past-end.sqfs")
def fragment_offset_past_end(found):
    """The tail of /bad starts inside its fragment and ends behind it."""
    image = broken(found).put("bad offset", 100)
    tail = len(BAD) - BLOCK
    says = f"has {tail + len(SMALL)} bytes, the file needs {100 + tail}"
    found.fails("read", "bad", f"data block at {image.value('fragment 0 start'):#x}", says)
    return image.file()


@case("fragment-offset-overflow.sqfs")
def fragment_offset_overflow(found):
    """The tail of /bad starts 1 byte before 2^32 of its fragment."""
    image = broken(found).put("bad offset", (1 << 32) - 1)
    found.fails("read", "bad", f"data block at {image.value('fragment 0 start'):#x}", "needs 42949")
    return image.file()


def fragment_broken(found):
    """The sound image, in which the tails of /bad and of the files in /baddir are broken."""
    image = broken(found)
    del found.healthy["baddir/a"]
    return image


@case("fragment-too-long.sqfs")
def fragment_too_long(found):
    """Fragment 0 claims 5000 compressed bytes in an image with blocks of 4096."""
    image = fragment_broken(found).put("fragment 0 word", 5000)
    where = image.value("fragment 0 start")
    found.fails("read", "bad", f"data block at {where:#x}", "claims 5000 bytes, limit 4096")
    return image.file()


@case("fragment-empty.sqfs")
def fragment_empty(found):
    """Fragment 0 is a block of no bytes."""
    image = fragment_broken(found).put("fragment 0 word", 0)
    found.fails("read", "bad", image.inode("bad"), "fragment 0 is a block of 0 bytes")
    return image.file()


@case("fragment-nowhere.sqfs")
def fragment_nowhere(found):
    """Fragment 0 starts past the end of the image."""
    image = fragment_broken(found).put("fragment 0 start", 1 << 40)
    found.fails("read", "bad", image.inode("bad"), "0x10000000000")
    return image.file()


@case("size-over-blocks.sqfs")
def size_over_blocks(found):
    """/bad claims 512 GiB: its block list would be longer than the whole inode table can hold."""
    image = broken(found).put("bad size", 1 << 39)
    found.fails("read", "bad", image.inode("bad"), "of 134217728 blocks", "inode table")
    return image.file()


@case("size-over-all.sqfs")
def size_over_all(found):
    """/bad claims 2^63 bytes, more than a file can have."""
    image = broken(found).put("bad size", 1 << 63)
    found.fails("stat", "bad", image.inode("bad"), "file of 9223372036854775808 bytes")
    return image.file()


@case("inode-number-0.sqfs")
def inode_number_0(found):
    """The inode of /bad has the number 0."""
    image = broken(found).put("bad number", 0)
    found.fails("stat", "bad", image.inode("bad"), "inode number 0")
    return image.file()


@case("inode-type.sqfs")
def inode_type(found):
    """The inode of /bad is of type 15."""
    image = broken(found).put("bad type", 15)
    found.fails("stat", "bad", image.inode("bad"), "inode type 15")
    return image.file()


@case("owner-past-count.sqfs")
def owner_past_count(found):
    """The owner of /bad is the second of one."""
    image = broken(found).put("bad uid", 1)
    found.fails("stat", "bad", image.inode("bad"), "id 1 referenced, but there are 1")
    return image.file()


@case("symlink-too-long.sqfs")
def symlink_too_long(found):
    """The target of /badlink has a byte more than 64 KiB."""
    image = sound(found).put("badlink size", (64 << 10) + 1)
    found.fails("stat", "badlink", image.inode("badlink"), "symbolic link target of 65537 bytes")
    return image.file()


@case("symlink-past-table.sqfs")
def symlink_past_table(found):
    """The target of /badlink has 60000 bytes, and the image ends before that."""
    image = sound(found).put("badlink size", 60000)
    found.fails("readlink", "badlink", image.inode("badlink"), "metadata block at 0x")
    return image.file()


def directory_broken(found):
    """The sound image, in which /baddir is going to be broken."""
    image = sound(found)
    del found.healthy["baddir/a"]
    return image


@case("name-too-long.sqfs")
def name_too_long(found):
    """A name in /baddir has 301 bytes."""
    image = directory_broken(found).put("baddir/a name length", 300)
    found.fails("list", "baddir", image.inode("baddir"), "a name of 301 bytes, limit 255")
    return image.file()


@case("name-257.sqfs")
def name_257(found):
    """A name in /baddir has 257 bytes, and the size of its listing allows for them."""
    image = directory_broken(found).put("baddir/a name length", 256).put("baddir size", 2000)
    found.fails("list", "baddir", image.inode("baddir"), "a name of 257 bytes, limit 255")
    return image.file()


@case("name-length-wraps.sqfs")
def name_length_wraps(found):
    """The length of a name in /baddir is 65535, which stands for one more: 0 in 16 bits."""
    image = directory_broken(found).put("baddir/a name length", 65535).put("baddir size", 70000)
    found.fails("list", "baddir", image.inode("baddir"), "a name of 65536 bytes, limit 255")
    return image.file()


@case("name-slash.sqfs")
def name_slash(found):
    """A name in /baddir is a slash."""
    image = directory_broken(found).put("baddir/a name", b"/")
    found.fails("list", "baddir", image.inode("baddir"), "entry named /")
    return image.file()


@case("name-nul.sqfs")
def name_nul(found):
    """A name in /baddir is a NUL."""
    image = directory_broken(found).put("baddir/a name", b"\0")
    found.fails("list", "baddir", image.inode("baddir"), "entry named \\x00")
    return image.file()


@case("name-dot.sqfs")
def name_dot(found):
    """A name in /baddir is a dot, the directory itself."""
    image = directory_broken(found).put("baddir/a name", b".")
    found.fails("list", "baddir", image.inode("baddir"), "entry named .")
    return image.file()


@case("name-twice.sqfs")
def name_twice(found):
    """Both names in /baddir are b."""
    image = directory_broken(found).put("baddir/a name", b"b")
    found.fails("list", "baddir", image.inode("baddir"), "b comes after b, names must ascend")
    return image.file()


@case("names-descend.sqfs")
def names_descend(found):
    """The names in /baddir descend: c, then b."""
    image = directory_broken(found).put("baddir/a name", b"c")
    found.fails("list", "baddir", image.inode("baddir"), "b comes after c, names must ascend")
    return image.file()


@case("entry-type.sqfs")
def entry_type(found):
    """An entry of /baddir is of type 9."""
    image = directory_broken(found).put("baddir/a kind", 9)
    found.fails("list", "baddir", image.inode("baddir"), "entry of type 9, valid are 1 to 7")
    return image.file()


@case("entry-type-differs.sqfs")
def entry_type_differs(found):
    """The entry of /bad says that it is a directory; its inode is that of a file."""
    image = broken(found).put("root/bad kind", 1)
    found.fails("stat", "bad", image.inode("bad"), "a regular file, its entry says a directory")
    return image.file()


@case("run-too-long.sqfs")
def run_too_long(found):
    """A header in the listing of /baddir announces 257 entries."""
    image = directory_broken(found).put("baddir/a count", 256)
    found.fails("list", "baddir", image.inode("baddir"), "header with 257 entries, limit 256")
    return image.file()


@case("listing-nowhere.sqfs")
def listing_nowhere(found):
    """The listing of /baddir lies past the end of the image."""
    image = directory_broken(found).put("baddir block", 1 << 30).put("baddir index count", 0)
    where = image.value("directory table") + (1 << 30)
    found.fails("list", "baddir", image.inode("baddir"), f"metadata block at {where:#x}")
    return image.file()


@case("listing-too-long.sqfs")
def listing_too_long(found):
    """The listing of /baddir claims 4 GiB, so it overlaps the listings of other directories."""
    image = directory_broken(found).put("baddir size", 0xFFFFFFFF)
    found.fails("list", "baddir", image.inode("baddir"), "names must ascend")
    return image.file()


@case("index-too-long.sqfs")
def index_too_long(found):
    """The index of /baddir claims 65535 entries, so it overlaps other inodes."""
    image = directory_broken(found).put("baddir index count", 65535)
    found.fails("stat", "baddir/b", image.inode("baddir"), "directory index: name of")
    return image.file()


@case("folder-in-itself.sqfs")
def directory_in_itself(found):
    """The entry a of /baddir is /baddir itself."""
    image = sound(found)
    del found.healthy["baddir/a"]
    cycle(image, "baddir/a", "baddir", BADDIR)
    found.fails("stat", "baddir/a", image.inode("baddir"), "contains itself")
    found.fails("list", "baddir", image.inode("baddir"), "contains itself")
    return image.file()


@case("root-in-folder.sqfs")
def root_in_directory(found):
    """The entry a of /baddir is the root."""
    image = sound(found)
    del found.healthy["baddir/a"]
    cycle(image, "baddir/a", "root", 10)
    found.fails("stat", "baddir/a", image.inode("root"), "contains the root")
    found.fails("list", "baddir", image.inode("baddir"), "contains the root")
    return image.file()


def cycle(image, entry, directory, number):
    """Makes `entry` lead to `directory`."""
    image.put(f"{entry} block", image.references[directory] >> 16)
    image.put(f"{entry} offset", image.references[directory] & 0xFFFF)
    image.put(f"{entry} base", number).put(f"{entry} kind", 1)
