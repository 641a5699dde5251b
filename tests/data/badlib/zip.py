"""Writes the records of ZIP archives (APPNOTE 6.3.10, 4.3), any of whose fields can be false."""

import struct
import zlib

DEFLATE = 8
UNIX = 3


def deflate(data):
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(data) + encoder.flush()


class Archive:
    """Members, and entries of the central directory."""

    def __init__(self):
        self.bytes = b""
        self.directory = b""
        self.count = 0

    def add(self, name, data, **fields):
        """A member with its entry. `local` are fields of the local header alone."""
        local = {"extra": b"", **fields.pop("local", {})}
        offset = len(self.bytes)
        about = {"method": 0, "crc": zlib.crc32(data), "compressed": len(data), "size": len(data), "flags": 0}
        about.update({key: fields[key] for key in about if key in fields})
        head = {**about, "name": name, **local}
        self.bytes += struct.pack("<4sHHHHHIIIHH", head.get("signature", b"PK\3\4"), 20, head["flags"],
                                  head["method"], 0, 0x21, head["crc"], head["compressed"], head["size"],
                                  len(head["name"]), len(head["extra"])) + head["name"] + head["extra"] + data
        self.entry(name, offset=fields.get("offset", offset), mode=fields.get("mode", 0o100644),
                   extra=fields.get("extra", b""), disk=fields.get("disk", 0), **about)
        return self

    def entry(self, name, method, crc, compressed, size, flags, offset, mode, extra=b"", disk=0):
        """An entry without a member."""
        self.directory += struct.pack("<4sBBHHHHHIIIHHHHHII", b"PK\1\2", 20, UNIX, 20, flags, method, 0, 0x21, crc,
                                      compressed, size, len(name), len(extra), 0, disk, 0, mode << 16,
                                      offset) + name + extra
        self.count += 1
        return self

    def deflated(self, name, data, **fields):
        return self.add(name, deflate(data), **{"method": DEFLATE, "crc": zlib.crc32(data), "size": len(data),
                                                **fields})

    def end(self, **fields):
        """The archive with its end record."""
        about = {"disk": 0, "directory_disk": 0, "here": self.count, "count": self.count,
                 "length": len(self.directory), "offset": len(self.bytes), "comment": b"", **fields}
        return self.bytes + self.directory + struct.pack(
            "<4sHHHHIIH", b"PK\5\6", about["disk"], about["directory_disk"], about["here"], about["count"],
            about["length"], about["offset"], len(about["comment"])) + about["comment"]
