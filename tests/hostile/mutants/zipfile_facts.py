"""What Python reads from ZIP archives, as facts: the oracle for mutants of ZIP archives.

Reads paths from stdin, one a line. Answers each with lines "KEY VALUE" and a last line "."; the keys are those of
facts.rs, and an object is a path in hex. A key that could not be read has the value "!" and a reason.
zipfile reads the central directory. It refuses a whole archive for one bad name, extra field or version, where archfs
goes on, so that it is made to go on here. The data is decoded here, since zipfile checks stored members against their
checksum, and names against local headers, which archfs leaves to verify.
"""

import io
import lzma
import os
import posixpath
import signal
import struct
import sys
import time
import types
import zipfile
import zlib

CHUNK, CHUNKS_MAX, TAIL_CHUNKS = 4096, 512, 16
SECONDS, DECODED_MAX = 20, 64 << 20
DIRECTORY, REGULAR, SYMLINK = 1, 2, 3
UNIX = (3, 16, 19)


class Name(bytes):
    """A name that is not UTF-8 keeps its bytes."""

    def decode(self, encoding="utf-8", errors="strict"):
        return super().decode(encoding, "surrogateescape" if encoding == "utf-8" else errors)


class Buffer(io.BytesIO):
    def read(self, size=-1):
        return Name(super().read(size))


zipfile.io = types.SimpleNamespace(**{**vars(io), "BytesIO": Buffer})
zipfile.MAX_EXTRACT_VERSION = 255


def lenient(decode):
    """A cut extra field ends the list of them."""

    def wrapped(self, *more):
        try:
            decode(self, *more)
        except (zipfile.BadZipFile, struct.error, UnicodeDecodeError, ValueError):
            pass
    return wrapped


zipfile.ZipInfo._decodeExtra = lenient(zipfile.ZipInfo._decodeExtra)


def extras(info):
    at = 0
    while at + 4 <= len(info.extra):
        number, size = struct.unpack_from("<HH", info.extra, at)
        if at + 4 + size > len(info.extra):
            return
        yield number, info.extra[at + 4:at + 4 + size]
        at += 4 + size


def unix_time(bits, late):
    return (bits if late or bits < 1 << 31 else bits - (1 << 32)) * 10**9


def nanoseconds(info):
    late = info.date_time[0] >= 2038
    stamp = ntfs = unix = None
    for number, field in extras(info):
        if number == 0x5455 and len(field) >= 5 and field[0] & 1:
            stamp = unix_time(struct.unpack_from("<I", field, 1)[0], late)
        elif number in (0x5855, 0x000d) and len(field) >= 8:
            unix = unix_time(struct.unpack_from("<I", field, 4)[0], late)
        elif number == 0x000a:
            at = 4
            while at + 4 <= len(field):
                tag, size = struct.unpack_from("<HH", field, at)
                if at + 4 + size > len(field):
                    break
                if tag == 1 and size >= 8:
                    ticks = struct.unpack_from("<Q", field, at + 4)[0]
                    ntfs = (ticks - 11_644_473_600 * 10**7) * 100 if ticks else None
                at += 4 + size
    for known in (ntfs, stamp, unix):
        if known is not None:
            return known
    year, month, day, hour, minute, second = info.date_time
    try:
        time.strptime(f"{year}-{month}-{day} {hour}:{minute}:{min(second, 59)}", "%Y-%m-%d %H:%M:%S")
        if second > 59:
            raise ValueError
        return int(time.mktime((*info.date_time, 0, 0, -1))) * 10**9
    except (ValueError, OverflowError):
        return 315_532_800 * 10**9


def number_of(field, at):
    """A number with its length before it, and the position after it."""
    size = field[at]
    digits = field[at + 1:at + 1 + size]
    if len(digits) < size:
        raise IndexError
    value = int.from_bytes(digits, "little")
    return (value if value < (1 << 32) - 1 else 65534), at + 1 + size


def owner(info):
    found = None
    for number, field in extras(info):
        try:
            if number == 0x7875 and field[0] == 1:
                uid, at = number_of(field, 1)
                found = uid, number_of(field, at)[0]
            elif number == 0x000d and len(field) >= 12 and found is None:
                found = struct.unpack_from("<HH", field, 8)
        except IndexError:
            pass
    return found or (os.geteuid(), os.getegid())


def name_of(info):
    utf8 = info.flag_bits & 0x800
    raw = info.orig_filename.encode("utf-8", "surrogateescape") if utf8 else info.orig_filename.encode("cp437")
    shown = raw
    if not utf8:
        for number, field in extras(info):
            if number == 0x7075 and len(field) >= 5 and field[0] == 1:
                try:
                    field[5:].decode("utf-8")
                except UnicodeDecodeError:
                    continue
                if struct.unpack_from("<I", field, 1)[0] == zlib.crc32(raw):
                    return raw, field[5:]
        if info.create_system not in UNIX:
            shown = raw.decode("cp437").encode()
    if info.create_system == 0 and b"/" not in shown:
        shown = shown.replace(b"\\", b"/")
    return raw, shown


def kind(info, raw):
    mode = info.external_attr >> 16 if info.create_system in UNIX else 0
    dos = info.create_system not in UNIX and info.file_size == 0
    if raw.endswith(b"/") or mode & 0o170000 == 0o040000 or dos and (info.external_attr & 16 or raw.endswith(b"\\")):
        return DIRECTORY
    return SYMLINK if mode & 0o170000 == 0o120000 and info.file_size else REGULAR


def permissions(info, number):
    mode = info.external_attr >> 16 if info.create_system in UNIX else 0
    if mode:
        return mode & 0o7777
    read_only = info.create_system not in UNIX and info.external_attr & 1
    return (0o555 if number == DIRECTORY else 0o444) | (0 if read_only else 0o200)


class Unreadable(Exception):
    pass


def decoded(data, info, checks):
    """The contents of a member. `checks`: also of a stored one, the checksum."""
    at = info.header_offset
    if data[at:at + 4] != b"PK\3\4" or at < 0:
        raise Unreadable("no header")
    method, name, extra = struct.unpack_from("<H16xHH", data, at + 8)
    if method != info.compress_type:
        raise Unreadable("method")
    start = at + 30 + name + extra
    packed = data[start:start + info.compress_size]
    if len(packed) < info.compress_size:
        raise Unreadable("short")
    if method == 0:
        out = packed
    elif method in (8, 12, 14):
        try:
            out = decoder(method, packed, info)
        except (OSError, ValueError, EOFError, MemoryError, zlib.error, lzma.LZMAError, struct.error) as error:
            raise Unreadable(type(error).__name__) from error
    else:
        raise Unreadable("unknown method")
    if len(out) != info.file_size:
        raise Unreadable("size")
    if (method or checks) and zlib.crc32(out) != info.CRC:
        raise Unreadable("checksum")
    return out


def decoder(method, packed, info):
    if method == 8:
        return zlib.decompressobj(-15).decompress(packed, max(1, min(info.file_size, DECODED_MAX)))
    return zipfile._get_decompressor(method).decompress(packed)


def pieces(key, out):
    chunks = -(-len(out) // CHUNK)
    nth = 0
    while nth < chunks:
        if nth >= CHUNKS_MAX and nth + TAIL_CHUNKS < chunks:
            nth = chunks - TAIL_CHUNKS
        yield f"{key}.c{nth:x} {zlib.crc32(out[nth * CHUNK:(nth + 1) * CHUNK]):08x}"
        nth += 1


def member_facts(data, info, raw, key):
    number = kind(info, raw)
    uid, gid = owner(info)
    yield f"{key}.kind {number}"
    yield f"{key}.mode {permissions(info, number):o}"
    yield f"{key}.uid {uid}"
    yield f"{key}.gid {gid}"
    yield f"{key}.mtime {nanoseconds(info)}"
    if number == REGULAR:
        yield f"{key}.size {info.file_size}"
    if number != DIRECTORY:
        try:
            out = decoded(data, info, number == SYMLINK)
        except Unreadable as error:
            yield f"{key}.c0 !{error}".replace(" ", "_").replace("_!", " !")
            return
        if number == SYMLINK:
            yield f"{key}.target {out.hex()}"
        else:
            yield from pieces(key, out)


def parents(name):
    """The directories that lead to a path, from the root on."""
    parts = name.split(b"/")
    return [b"/".join(parts[:count]) for count in range(len(parts))]


def implied_facts(maker, key):
    """A directory without an entry has the owner and the time of the first member in it."""
    uid, gid = owner(maker)
    yield f"{key}.implied "
    yield f"{key}.kind {DIRECTORY}"
    yield f"{key}.mode 755"
    yield f"{key}.uid {uid}"
    yield f"{key}.gid {gid}"
    yield f"{key}.mtime {nanoseconds(maker)}"


def facts(path):
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError, OverflowError,
            UnicodeDecodeError) as error:
        yield f"open !{type(error).__name__}"
        return
    found, makers = {}, {}
    for info in archive.infolist():
        raw, shown = name_of(info)
        name = posixpath.normpath(b"/" + shown).lstrip(b"/")
        for parent in parents(name):
            makers.setdefault(parent, info)
        if name in found and kind(*found[name]) == DIRECTORY and kind(info, raw) != DIRECTORY:
            continue
        found[name] = (info, raw)
    for name in {*found, *makers} - {b""}:
        parent, _, last = name.rpartition(b"/")
        yield f"{parent.hex() or '/'}.n{last.hex()} "
    for name in makers:
        if name not in found:
            yield from implied_facts(makers[name], name.hex() or "/")
    for name, (info, raw) in found.items():
        yield from member_facts(data, info, raw, name.hex() or "/")


class TooLong(BaseException):
    """Not an Exception, so that nothing handles it as an error of the archive."""


def too_long(_number, _frame):
    raise TooLong


def main():
    os.environ["TZ"] = "UTC"
    time.tzset()
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
