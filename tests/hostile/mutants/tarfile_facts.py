"""What Python's tarfile reads from tars, as facts: the oracle for mutants of tars.

Reads paths from stdin, one a line. Answers each with lines "KEY VALUE" and a last line "."; the keys are those of
facts.rs, and an object is a path in hex. A key that could not be read has the value "!" and a reason.
A compressed tar is decoded first, up to the first damage, like a truncated one. If members have the same path, the
last one counts, but a directory stays a directory, as in tests/python/tar_tree.py. The key "implied" marks a
directory that has no member.
"""

import bz2
import decimal
import io
import lzma
import os
import posixpath
import signal
import subprocess
import sys
import tarfile
import zlib

CHUNK, CHUNKS_MAX, TAIL_CHUNKS = 4096, 512, 16
# Limits for one tar: CPU seconds, and decoded bytes of a compressed one.
SECONDS, DECODED_MAX = 20, 64 << 20


def step_by_step(decoder, data, more=lambda: None):
    """Decodes in pieces, to keep what precedes damage; returns whether there was damage."""
    out, damaged = [], False
    at, size = 0, 0
    try:
        while at < len(data):
            if decoder is None or getattr(decoder, "eof", False):
                rest = decoder.unused_data + data[at:]
                decoder = more()
                if decoder is None or not rest:
                    break
                data, at = rest, 0
            piece = decoder.decompress(data[at:at + 64])
            at += 64
            size += len(piece)
            out.append(piece)
            if size > DECODED_MAX:
                return b"".join(out), True
        damaged = not decoder.eof
    except (OSError, zlib.error, lzma.LZMAError, EOFError, ValueError):
        damaged = True
    return b"".join(out), damaged


def by_program(program, data):
    done = subprocess.run([program, "-dcq"], input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          check=False)
    return done.stdout, done.returncode != 0


def decoded(data):
    if data[:3] == b"\x1f\x8b\x08":
        more = lambda: zlib.decompressobj(31)
        return step_by_step(more(), data, more)
    if data[:3] == b"BZh":
        return step_by_step(bz2.BZ2Decompressor(), data, bz2.BZ2Decompressor)
    if data[:6] == b"\xfd7zXZ\0":
        more = lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)
        return step_by_step(more(), data, more)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return by_program("zstd", data)
    if data[:4] == b"\x04\x22\x4d\x18":
        return by_program("lz4", data)
    return data, False


# Numbers in a header other than the size. A member exists even if they are invalid.
NUMBERS = [(100, 8), (108, 8), (116, 8), (136, 12), (329, 8), (337, 8)]
SIZE, CHECKSUM = (124, 12), (148, 8)


def number(field):
    """A number as GNU tar reads it (from_header in list.c): digits up to a space or NUL. None if it is invalid
    or exceeds 64 bits."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        value = value if not field[0] & 0x40 else value - (1 << (8 * len(field) - 1))
        return value if -1 << 63 <= value < 1 << 63 else None
    text = (field[1:] if field[0] == 0 else field).lstrip(b" \t\n\v\f\r")
    count = next((at for at, byte in enumerate(text) if byte not in b"01234567"), len(text))
    if count < len(text) and text[count] not in b"\0 ":
        return None
    return int(text[:count] or b"0", 8)


def repaired(header):
    """The header with numbers that tarfile accepts. tarfile uses int() and drops the member if that fails."""
    sums = tarfile.calc_chksums(header)
    at, width = CHECKSUM
    if number(header[at:at + width]) not in sums:
        return header
    header = bytearray(header)
    if header[257:263] != b"ustar\0" and header[156:157] != tarfile.GNUTYPE_SPARSE:
        # Only POSIX headers have a prefix there. tarfile uses it for all formats.
        header[345:500] = bytes(155)
    for at, width in NUMBERS + [SIZE]:
        value = number(header[at:at + width])
        # A member without data needs no size.
        if value is None and ((at, width) != SIZE or header[156] in b"123456"):
            value = 0
        if value is not None:
            if width == 8 and not -1 << 55 <= value < 1 << 55:
                # tarfile cannot store it. For a mode the low bits matter, for an owner only that it is too large.
                value = value & 0o7777 | 1 << 54
            header[at:at + width] = tarfile.itn(value, width, tarfile.GNU_FORMAT)
    at, width = CHECKSUM
    header[at:at + width] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return bytes(header)


class Member(tarfile.TarInfo):
    """If a member has two extensions, the later one counts, as in POSIX. tarfile alone uses the first."""

    def _proc_gnulong(self, archive):
        member = super()._proc_gnulong(archive)
        field = "name" if self.type == tarfile.GNUTYPE_LONGNAME else "linkname"
        member.said = getattr(member, "said", {})
        setattr(member, field, member.said.setdefault(field, getattr(member, field)))
        return member

    def _proc_pax(self, archive):
        member = super()._proc_pax(archive)
        if self.type != tarfile.XGLTYPE:
            later = getattr(member, "records", {})
            member.records = {**member.pax_headers, **later}
            if later:
                member._apply_pax_info(member.records, archive.encoding, archive.errors)
        return member

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        if len(buf) == tarfile.BLOCKSIZE and buf.count(0) != tarfile.BLOCKSIZE:
            buf = repaired(buf)
        return super().frombuf(buf, encoding, errors)


def clean(name):
    return os.fsencode(posixpath.normpath("/" + name).lstrip("/"))


def nanoseconds(member):
    text = member.pax_headers.get("mtime", member.mtime)
    return int((decimal.Decimal(text) * 10**9).to_integral_value(decimal.ROUND_FLOOR))


def kind(member):
    # Like GNU tar: D is a directory with a list of its files. A file whose name ends with a slash is a directory,
    # unless it is sparse.
    if member.isdir() or member.type == b"D":
        return 1
    if member.issym():
        return 3
    if member.isblk():
        return 4
    if member.ischr():
        return 5
    if member.isfifo():
        return 6
    return 1 if member.name.endswith("/") and member.type != tarfile.GNUTYPE_SPARSE else 2


def contents(archive, member, key):
    size = member.size
    yield f"{key}.size {size}"
    stream = archive.extractfile(member)
    chunks = -(-size // CHUNK)
    nth = 0
    while nth < chunks:
        if nth >= CHUNKS_MAX and nth + TAIL_CHUNKS < chunks:
            nth = chunks - TAIL_CHUNKS
        want = min(CHUNK, size - nth * CHUNK)
        try:
            stream.seek(nth * CHUNK)
            piece = stream.read(want)
        except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
            yield f"{key}.c{nth:x} !{type(error).__name__}"
            return
        if len(piece) == want:
            yield f"{key}.c{nth:x} {zlib.crc32(piece):08x}"
        else:
            yield f"{key}.c{nth:x} !short"
        nth += 1


def member_facts(archive, member, key):
    number = kind(member)
    yield f"{key}.kind {number}"
    yield f"{key}.mode {member.mode & 0o7777:o}"
    yield f"{key}.uid {member.uid}"
    yield f"{key}.gid {member.gid}"
    try:
        yield f"{key}.mtime {nanoseconds(member)}"
    except (ArithmeticError, ValueError) as error:
        yield f"{key}.mtime !{type(error).__name__}"
    if number == 2:
        yield from contents(archive, member, key)
    if number == 3:
        yield f"{key}.target {os.fsencode(member.linkname).hex()}"
    if number in (4, 5):
        major, minor = member.devmajor, member.devminor
        if major >> 12 or minor >> 20:
            yield f"{key}.device !large"
        else:
            yield f"{key}.device {(minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)}"
    for name, value in member.pax_headers.items():
        if name.startswith("SCHILY.xattr."):
            value = value.encode("utf-8", "surrogateescape")
            yield f"{key}.x{os.fsencode(name[13:]).hex()} {zlib.crc32(value):08x}"


def members(archive):
    """Every member that tarfile finds. After an error it continues at the next block. By itself tarfile does so
    for a damaged header, but not for several in a row."""
    errors = 0
    while errors < 1000:
        before = archive.offset
        try:
            member = archive.next()
        except (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, TypeError, IndexError) as error:
            yield f"error !{type(error).__name__}"
            errors += 1
            archive.offset = max(before, archive.offset) + tarfile.BLOCKSIZE
            continue
        if member is None:
            return
        # GNU tar does not treat a volume label as a file either.
        if member.type != b"V":
            yield member
        if archive.offset <= member.offset:
            # With a negative size tarfile would go back and loop.
            yield "error !circle"
            archive.offset = member.offset + tarfile.BLOCKSIZE
            errors += 1


def target(listed, named, nth):
    """The target of a hard link: the last earlier member with that path, or else the first later one, which
    GNU tar and tarfile ignore. Never a directory."""
    seen = set()
    while listed[nth].islnk():
        if nth in seen:
            return None
        seen.add(nth)
        others = [at for at in named.get(clean(listed[nth].linkname), [])
                  if at != nth and (listed[at].islnk() or kind(listed[at]) != 1)]
        before = [at for at in others if at < nth]
        if not others:
            return None
        nth = before[-1] if before else others[0]
    return listed[nth]


def facts(path):
    with open(path, "rb") as stream:
        data, damaged = decoded(stream.read())
    if damaged:
        yield "decoded !damaged"
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:", ignore_zeros=True, tarinfo=Member,
                               encoding="utf-8", errors="surrogateescape")
    except (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, TypeError, IndexError) as error:
        yield f"open !{type(error).__name__}"
        return
    found = {}
    listed = list(members(archive))
    # All members are known. Looking up the target of a link would read further.
    archive._loaded = True
    named = {}
    for nth, member in enumerate(listed):
        if not isinstance(member, str):
            named.setdefault(clean(member.name), []).append(nth)
    lost = []
    for nth, member in enumerate(listed):
        if isinstance(member, str):
            yield member
            continue
        name, inode = clean(member.name), target(listed, named, nth)
        if inode is None:
            lost.append(name)
            continue
        if name in found and kind(found[name]) == 1 and kind(inode) != 1:
            continue
        found[name] = inode
    shown = {b""}
    for name in [*found, *lost]:
        # GNU tar also creates the directory of a link before it finds the target missing.
        if name in lost and name not in found:
            name = name.rpartition(b"/")[0]
        while name and name not in shown:
            shown.add(name)
            parent, _, last = name.rpartition(b"/")
            yield f"{parent.hex() or '/'}.n{last.hex()} "
            if name not in found:
                yield f"{name.hex()}.implied "
            name = parent
    if b"" not in found:
        yield "/.implied "
    for name, inode in found.items():
        yield from member_facts(archive, inode, name.hex() or "/")


class TooLong(BaseException):
    """Not an Exception, so that neither tarfile nor this program handles it as an error of the archive."""


def too_long(_number, _frame):
    raise TooLong


def main():
    signal.signal(signal.SIGPROF, too_long)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            for fact in facts(line.rstrip("\n")):
                print(fact)
        except TooLong:
            print("error !timeout")
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(".", flush=True)


if __name__ == "__main__":
    main()
