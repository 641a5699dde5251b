"""Tars with one false statement each, between two undamaged members."""

import os

from badlib.case import case
from badlib.tar import BLOCK, END, base256, header, member, padded, pax, record

FIRST = b"first\n" * 20
LAST = b"last\n" * 20
BEFORE = member(b"first", FIRST)
BEHIND = member(b"last", LAST) + END

# The offset of the broken member's header.
AT = len(BEFORE)


def between(found, *parts, says, lists=("first", "last")):
    """A tar with `parts` between two undamaged members, for which archfs logs `says`."""
    found.notes(*says)
    found.lists = sorted(lists)
    found.keeps("first", FIRST)
    found.keeps("last", LAST)
    return BEFORE + b"".join(parts) + BEHIND


def cut(found, *parts, says):
    """A tar that continues with `parts` after one undamaged member, and shows only that member."""
    found.notes(*says)
    found.lists = ["first"]
    found.keeps("first", FIRST)
    return BEFORE + b"".join(parts)


@case("sound.tar")
def sound(found):
    """Nothing: the writer's own tar, to show that it is right."""
    found.sound_for_others = True
    found.lists = ["first", "last", "real"]
    found.keeps("first", FIRST)
    found.keeps("last", LAST)
    found.keeps("real", b"data\n")
    extended = pax(record(b"path", b"real"), record(b"SCHILY.xattr.user.a", b"value"))
    return BEFORE + extended + member(b"short", b"data\n") + BEHIND


@case("checksum.tar")
def checksum(found):
    """The checksum of a header is wrong by one."""
    says = ["there is no header"]
    return between(found, member(b"bad", b"data\n", checksum=1), says=says)


@case("size-past-end.tar")
def size_past_end(found):
    """A member claims more bytes than the archive has."""
    return cut(found, member(b"bad", b"data\n", size=10 << 20), BEHIND, says=['cut off: "bad"'])


@case("size-max.tar")
def size_max(found):
    """A member claims 2^63 - 1 bytes in base 256."""
    bad = member(b"bad", b"data\n", size=base256((1 << 63) - 1, 12))
    return cut(found, bad, BEHIND, says=['cut off: "bad"'])


@case("size-negative.tar")
def size_negative(found):
    """The size of a member is -1 in base 256."""
    bad = header(b"bad", size=base256(-1, 12))
    says = ['damaged member "bad"', f"header at {AT:#x}", "is not a size"]
    return between(found, bad, says=says)


@case("size-overflow.tar")
def size_overflow(found):
    """The size of a member is 2^64 + 512 in base 256, which is 512 in 64 bits."""
    bad = member(b"bad", bytes(BLOCK), size=base256((1 << 64) + BLOCK, 12))
    return between(found, bad, says=['damaged member "bad"', f"header at {AT:#x}", "is not a size"])


@case("size-garbage.tar")
def size_garbage(found):
    """The size of a member is no octal number."""
    bad = header(b"bad", size=b"0000000089\0\0")
    says = ['damaged member "bad"', f"header at {AT:#x}", "0000000089\\x00\\x00 is not a size"]
    return between(found, bad, says=says)


def bad_pax(found, body, *says):
    """A pax header with the body `body`, and the member it belongs to."""
    bad = member(b"PaxHeaders/bad", body, kind=b"x")
    says = [f"header at {AT:#x}", *says]
    return between(found, bad, member(b"bad", b"data\n"), says=says, lists=["bad", "first", "last"])


@case("pax-length-over.tar")
def pax_length_over(found):
    """A pax record claims to be longer than its header."""
    return bad_pax(found, b"999 path=other\n", '"999 path=other\\n" is not a record')


@case("pax-length-0.tar")
def pax_length_0(found):
    """A pax record claims to be 0 bytes long."""
    return bad_pax(found, b"0 path=other\n", '"0 path=other\\n" is not a record')


@case("pax-length-in-number.tar")
def pax_length_in_number(found):
    """A pax record claims to end within the number that says so."""
    return bad_pax(found, b"2 path=other\n", '"2 path=other\\n" is not a record')


@case("pax-length-max.tar")
def pax_length_max(found):
    """A pax record claims 2^64 - 1 bytes."""
    body = b"18446744073709551615 path=other\n"
    return bad_pax(found, body, "is not a record")


@case("pax-no-newline.tar")
def pax_no_newline(found):
    """A pax record does not end with a newline."""
    return bad_pax(found, b"14 path=other ", '"14 path=other " is not a record')


@case("pax-no-equals.tar")
def pax_no_equals(found):
    """A pax record has no equals sign."""
    return bad_pax(found, b"14 path other\n", '"14 path other\\n" is not a record')


@case("pax-no-member.tar")
def pax_no_member(found):
    """A pax header is the last thing in the archive: its member is missing."""
    bad = pax(record(b"path", b"other"))
    return cut(found, bad, END, says=[f"header at {AT:#x}", "an extension without its member"])


@case("pax-huge.tar")
def pax_huge(found):
    """A pax header claims a TiB."""
    bad = header(b"PaxHeaders/bad", size=base256(1 << 40, 12), kind=b"x")
    says = [f"header at {AT:#x}", "an extension of 1099511627776 bytes, limit 16777216"]
    return cut(found, bad, BEHIND, says=says)


@case("long-name-huge.tar")
def long_name_huge(found):
    """GNU tar's header of a long name claims a TiB."""
    bad = header(b"././@LongLink", size=base256(1 << 40, 12), kind=b"L", gnu=True)
    says = [f"header at {AT:#x}", "an extension of 1099511627776 bytes, limit 16777216"]
    return cut(found, bad, BEHIND, says=says)


@case("long-name-over.tar")
def long_name_over(found):
    """A path has 40000 bytes, of which archfs takes 32 KiB."""
    bad = member(b"././@LongLink", b"n/" * 20000 + b"\0", kind=b"L", gnu=True)
    bad += member(b"bad", b"data\n", gnu=True)
    return between(found, bad, says=["left out 1: paths over 32768 bytes", "n/n/n/"])


@case("extensions-over.tar")
def extensions_over(found):
    """A member has 65 pax headers."""
    bad = pax(record(b"comment", b"x")) * 65
    says = [f"header at {AT:#x}", "too many extensions before one member"]
    lists = ["bad", "first", "last"]
    return between(found, bad, member(b"bad", b"data\n"), says=says, lists=lists)


@case("pax-size-overflow.tar")
def pax_size_overflow(found):
    """A pax header says that the size of its member is 2^64 - 1: padded, it overflows."""
    bad = pax(record(b"size", b"18446744073709551615")) + member(b"bad", b"data\n")
    return cut(found, bad, BEHIND, says=['cut off: "bad"'])


@case("pax-size-over-64-bits.tar")
def pax_size_over_64_bits(found):
    """A pax header says that the size of its member is 2^64."""
    bad = pax(record(b"size", b"18446744073709551616")) + member(b"bad", b"data\n")
    says = [f"header at {AT:#x}", "size 18446744073709551616 is not a number"]
    return between(found, bad, says=says, lists=["bad", "first", "last"])


@case("pax-size-garbage.tar")
def pax_size_garbage(found):
    """A pax header says that the size of its member is -5."""
    bad = pax(record(b"size", b"-5")) + member(b"bad", b"data\n")
    says = [f"header at {AT:#x}", "size -5 is not a number"]
    return between(found, bad, says=says, lists=["bad", "first", "last"])


def sparse(pieces, data, size):
    """A sparse file of GNU tar's version 0.1 with these pieces."""
    listed = b",".join(b"%d" % number for piece in pieces for number in piece)
    words = [record(b"GNU.sparse.size", b"%d" % size), record(b"GNU.sparse.map", listed)]
    words.append(record(b"GNU.sparse.name", b"bad"))
    return pax(*words) + member(b"GNUSparseFile.1/bad", data)


def bad_sparse(found, pieces, size, *says):
    """A sparse file of 100 stored bytes with a false map."""
    bad = sparse(pieces, b"x" * 100, size)
    return between(found, bad, says=['damaged member "bad"', f"header at {AT:#x}", "sparse map", *says])


@case("sparse-descends.tar")
def sparse_descends(found):
    """The pieces of a sparse map descend."""
    return bad_sparse(found, [(500, 50), (0, 50)], 1000, "overlaps the one before", "segment at 0x0")


@case("sparse-overlaps.tar")
def sparse_overlaps(found):
    """The pieces of a sparse map overlap."""
    return bad_sparse(found, [(0, 50), (49, 50)], 1000, "overlaps the one before", "segment at 0x31")


@case("sparse-past-size.tar")
def sparse_past_size(found):
    """A piece of a sparse map ends past the size of the file."""
    return bad_sparse(found, [(0, 50), (951, 50)], 1000, "ends past the end of the file", "segment at 0x3b7")


@case("sparse-overflow.tar")
def sparse_overflow(found):
    """A piece of a sparse map ends past 2^64."""
    piece = ((1 << 64) - 10, 50)
    return bad_sparse(found, [piece], 1000, "ends past the end of the file", "segment at 0xfffffffffffffff6")


@case("sparse-past-data.tar")
def sparse_past_data(found):
    """The pieces of a sparse map have more bytes than are stored."""
    return bad_sparse(found, [(0, 101)], 1000, "has no bytes in the archive", "segment at 0x0")


@case("sparse-size-max.tar")
def sparse_size_max(found):
    """A sparse file claims 2^63 bytes, more than a file can have."""
    return bad_sparse(found, [(0, 50)], 1 << 63, "the size of the file is missing")


@case("sparse-preface-count.tar")
def sparse_preface_count(found):
    """A sparse map of version 1.0 claims ten million pieces."""
    words = [record(b"GNU.sparse.major", b"1"), record(b"GNU.sparse.minor", b"0")]
    words += [record(b"GNU.sparse.realsize", b"1000"), record(b"GNU.sparse.name", b"bad")]
    bad = pax(*words) + member(b"GNUSparseFile.1/bad", padded(b"10000000\n0\n1\n") + b"x")
    says = ['damaged member "bad"', f"header at {AT:#x}", "sparse map: 10000000 segments, limit 1048576"]
    return between(found, bad, says=says)


@case("sparse-old-endless.tar")
def sparse_old_endless(found):
    """Each block of an old sparse map says that another follows, to the end of the archive."""
    map_ends = [(482, b"\1"), (483, b"%011o\0" % 1000)]
    bad = header(b"bad", kind=b"S", gnu=True, fields=map_ends)
    blocks = (bytes(504) + b"\1" + bytes(7)) * 4
    found.notes('damaged member "bad"', f"header at {AT:#x}", "sparse map: it is cut off")
    found.lists = ["first"]
    found.keeps("first", FIRST)
    return BEFORE + bad + blocks


@case("link-to-itself.tar")
def link_to_itself(found):
    """A hard link is a link to itself."""
    bad = header(b"bad", kind=b"1", link=b"bad")
    return between(found, bad, says=["left out 1: hard links whose target is not", '"bad"'])


@case("link-loop.tar")
def link_loop(found):
    """Two hard links name each other."""
    bad = header(b"one", kind=b"1", link=b"two") + header(b"two", kind=b"1", link=b"one")
    return between(found, bad, says=["left out 2: hard links whose target is not", '"one"'])


@case("link-nowhere.tar")
def link_nowhere(found):
    """A hard link names nothing in the archive."""
    bad = header(b"bad", kind=b"1", link=b"/etc/passwd")
    return between(found, bad, says=["left out 1: hard links whose target is not", '"bad"'])


@case("link-with-data.tar")
def link_with_data(found):
    """A hard link claims a GiB of data, which it has not."""
    bad = header(b"bad", kind=b"1", link=b"first", size=1 << 30)
    found.keeps("bad", FIRST)
    found.lists = ["bad", "first", "last"]
    found.keeps("last", LAST)
    return BEFORE + bad + BEHIND


@case("name-nul.tar")
def name_nul(found):
    """A pax header says a path with a NUL in it."""
    bad = pax(record(b"path", b"a\0b")) + member(b"bad", b"data\n")
    return between(found, bad, says=["left out 1: paths that are not valid on Linux", '"a\\x00b"'])


@case("name-empty.tar")
def name_empty(found):
    """A member has no name."""
    bad = member(b"", b"data\n")
    return between(found, bad, says=["left out 1: paths that are not valid on Linux", '""'])


@case("name-long.tar")
def name_long(found):
    """A name has 256 bytes, one more than Linux shows."""
    bad = pax(record(b"path", b"n" * 256)) + member(b"bad", b"data\n")
    return between(found, bad, says=["left out 1: paths that are not valid on Linux", '"nnnn'])


@case("name-deep.tar")
def name_deep(found):
    """A member lies below 1100 directories."""
    bad = pax(record(b"path", b"d/" * 1100 + b"f")) + member(b"bad", b"data\n")
    return between(found, bad, says=["left out 1: paths that are not valid on Linux", '"d/d/d/'])


@case("names-out.tar")
def names_out(found):
    """Names lead out of the archive: absolute, through .., and through a link of the archive."""
    bad = [member(b"/etc/passwd", b"absolute\n"), member(b"../../up", b"up\n")]
    bad += [header(b"out", kind=b"2", link=b"/tmp"), member(b"out/through", b"through\n")]
    found.lists = ["etc", "etc/passwd", "first", "last", "out", "out/through", "up"]
    found.keeps("etc/passwd", b"absolute\n")
    found.keeps("up", b"up\n")
    found.keeps("out/through", b"through\n")
    found.notes("left out 1: members whose path is also that of a directory", '"out"')
    return BEFORE + b"".join(bad) + BEHIND


@case("truncated-header.tar")
def truncated_header(found):
    """The archive ends within a header."""
    return cut(found, header(b"bad")[:300], says=["cut off: a header", f"end at {AT + 300:#x}"])


@case("truncated-data.tar")
def truncated_data(found):
    """The archive ends within the data of a member."""
    return cut(found, header(b"bad", size=2000), b"x" * 1000, says=['cut off: "bad"'])


def nested(depth):
    """Nested tars; returns the outermost one. The innermost has a file."""
    inner = member(b"core", b"core\n") + END
    for _ in range(depth):
        inner = member(b"n.tar", inner) + END
    return inner


@case("nested-too-deep.tar")
def nested_too_deep(found):
    """Ten tars lie one in the other, and archfs opens eight of them; the ninth is a file."""
    found.options = ["--recursive"]
    directories = [os.path.join(*["n"] * depth) for depth in range(1, 9)]
    found.lists = [*directories, directories[-1] + "/n.tar"]
    return nested(10)
