"""Hand-written compressed streams: bombs that compress well, and headers with false claims."""

import struct


def xxh32(data, seed=0):
    """The checksum of lz4 headers (xxHash, 32 bits), of fewer than 16 bytes."""
    mask = 0xFFFFFFFF
    one, two, three, four, five = 2654435761, 2246822519, 3266489917, 668265263, 374761393

    def rotated(number, by):
        return ((number << by) | (number >> (32 - by))) & mask

    total = (seed + five + len(data)) & mask
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        total = rotated((total + word * three) & mask, 17) * four & mask
    for byte in data[whole:]:
        total = rotated((total + byte * five) & mask, 11) * one & mask
    total = (total ^ (total >> 15)) * two & mask
    total = (total ^ (total >> 13)) * three & mask
    return total ^ (total >> 16)


def lz4_repeated(byte, count):
    """An lz4 block of `count` times `byte`: one literal, one long match, and five literals."""
    length = count - 6 - 4 - 15
    lengths = b"\xff" * (length // 255) + bytes([length % 255])
    return b"\x1f" + byte + b"\1\0" + lengths + b"\x50" + byte * 5


def lz4_frame(blocks):
    """A frame of independent blocks of up to 4 MiB, without content checksums."""
    descriptor = b"\x60\x70"
    out = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    for stored, plain in blocks:
        out += struct.pack("<I", len(stored) | (1 << 31 if plain else 0)) + stored
    return out + bytes(4)


def zstd_frame(parts, window_log=17, size=None):
    """A frame of raw blocks (bytes) and of runs ((byte, count) of up to 128 KiB)."""
    descriptor = 0xC0 if size is not None else 0
    out = b"\x28\xb5\x2f\xfd" + bytes([descriptor, (window_log - 10) << 3])
    out += struct.pack("<Q", size) if size is not None else b""
    for nth, part in enumerate(parts):
        last = nth == len(parts) - 1
        if isinstance(part, bytes):
            out += (len(part) << 3 | last).to_bytes(3, "little") + part
        else:
            byte, count = part
            out += (count << 3 | 1 << 1 | last).to_bytes(3, "little") + byte
    return out
