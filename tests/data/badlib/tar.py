"""A writer of tar headers in which every field can be wrong.

Layouts are those of POSIX.1-1988 (ustar) and of the GNU tar manual.
"""

BLOCK = 512
END = bytes(2 * BLOCK)


def octal(number, length):
    """A number as tars store it, followed by a NUL."""
    return b"%0*o\0" % (length - 1, number)


def base256(number, length):
    """A number with too many digits, or a negative number, as GNU tar stores it."""
    field = (number % (1 << (8 * length))).to_bytes(length, "big")
    return bytes([field[0] | 0x80]) + field[1:]


def padded(data):
    """`data`, padded with zeros to the end of a block."""
    return data + bytes(-len(data) % BLOCK)


def header(name, size=0, kind=b"0", link=b"", gnu=False, checksum=0, fields=()):
    """One block; `size` may be the bytes of the field, `fields` are (offset, bytes), `checksum` is the error
    of the checksum.
    """
    block = bytearray(BLOCK)
    size = size if isinstance(size, bytes) else octal(size, 12)
    magic = b"ustar  \0" if gnu else b"ustar\x0000"
    parts = [(0, name), (100, b"0000644\0"), (108, octal(0, 8)), (116, octal(0, 8)), (124, size)]
    parts += [(136, octal(1, 12)), (156, kind), (157, link), (257, magic)]
    for at, field in [*parts, *fields]:
        block[at : at + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % ((sum(block) + checksum) % (1 << 18))
    return bytes(block)


def member(name, data=b"", **fields):
    """A header, followed by the data."""
    fields.setdefault("size", len(data))
    return header(name, **fields) + padded(data)


def record(keyword, value):
    """A pax record."""
    body = b" " + keyword + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return b"%d" % length + body


def pax(*records, **fields):
    """A pax header with these records, for the member that follows."""
    return member(b"PaxHeaders/x", b"".join(records), kind=b"x", **fields)
