"""An fsspec file system of archives: `fsspec.open("archfs://train/a.jpeg::data.sqfs")`.

It needs the package fsspec, but neither a mount nor /dev/fuse. See docs/PYTHON.md.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Optional, Union

import fsspec

from ._archive import Entry
from ._errors import UsageError
from ._options import URLS, PathLike, Size, is_url
from ._reader import TO_END, Reader, check

# How much of a file is read when it is opened, bytes. Most files of a dataset are complete then.
_HEAD = 256 << 10

# Buffer of larger files, bytes: as many as one reply carries.
_BUFFER = 1 << 20

# The file type bits of a mode, for the kinds of `archfs ls --json`.
_FILE_TYPES = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "block device": stat.S_IFBLK,
    "character device": stat.S_IFCHR,
    "pipe": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
}


class ArchiveFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """One or more archives as a read-only file system.

    `fo` is the path of an archive, or several: of two files with one path, the later archive's is shown. The options
    are those of `archfs mount`. Files are read by a process that all processes of the job share.
    """

    protocol = "archfs"
    root_marker = ""

    def __init__(
        self,
        fo: Union[PathLike, Sequence[PathLike]] = "",
        *,
        nested: bool = False,
        names: Optional[str] = None,
        partial: bool = False,
        offset: Optional[Size] = None,
        index: Optional[PathLike] = None,
        cache: Optional[Size] = None,
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        **storage_options: Any,
    ) -> None:
        if self._cached:
            return
        super().__init__(**storage_options)
        if target_protocol not in (None, "file", "local", *URLS):
            raise UsageError(f"archfs: cannot read an archive from {target_protocol}://", "copy it to a file system")
        # archfs reads URLs itself. What fsspec's own file system for them needs to know does not reach it.
        if target_protocol in URLS and target_options:
            names = ", ".join(sorted(target_options))
            hint = "archfs takes credentials and certificates from the environment (docs/how-to/object-storage.md)"
            raise UsageError(f"archfs: options of {target_protocol}:// have no effect: {names}", hint)
        # fsspec's own file systems for S3 leave out the scheme.
        if target_protocol in URLS and isinstance(fo, str) and not is_url(fo):
            fo = f"{target_protocol}://{fo}"
        archives = [fo] if isinstance(fo, (str, bytes, os.PathLike)) else list(fo)
        if not archives or archives == [""]:
            raise UsageError("archfs: no archive", 'add it to the URL: "archfs://PATH::data.sqfs"')
        options = {
            "nested": nested,
            "names": names,
            "partial": partial,
            "offset": offset,
            "index": index,
            "cache": cache,
        }
        self._reader = Reader(archives, options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        stripped: str = super()._strip_protocol(path)
        return stripped.strip("/")

    @property
    def fsid(self) -> str:
        """The same for the same archives, unchanged, with the same options."""
        return f"archfs-{self._reader.identity}"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a directory, or the file itself: dicts as `info` returns them, or paths. As in fsspec's
        local file system, a link to a directory is no directory here, so that `find` ends.
        """
        path = self._strip_protocol(path)
        try:
            entries = [_listed(_joined(path, entry), entry) for entry in self._reader.list(path)]
        except NotADirectoryError:
            entries = [self.info(path)]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """What is known of a path. A symbolic link has the `type` and `size` of its target."""
        path = self._strip_protocol(path)
        return _info(path, self._reader.describe(path))

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any
    ) -> bytes:
        """The bytes of a file from `start` to `end`. Negative numbers count from its end."""
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            size = self._reader.describe(path)["size_bytes"]
            start, end, _ = slice(start, end).indices(size)
        first = start or 0
        if end is None:
            return self._reader.read(path, first)
        return self._reader.read(path, first, max(end - first, 0))

    def modified(self, path: str) -> datetime:
        """When a file was last modified."""
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            raise OSError(30, "archives are read-only", path)
        head, size, checksum = self._reader.read_part(path, 0, _HEAD)
        if len(head) == size:
            return io.BytesIO(head)
        return io.BufferedReader(_File(self._reader, path, head, size, checksum), _BUFFER)


class _File(io.RawIOBase):
    """A file that is larger than its head, which is in memory. If it is read from its start to its end, its checksum
    is compared with that of the archive, if there is one (CRC-32 plus 2^32).
    """

    def __init__(self, reader: Reader, path: str, head: bytes, size: int, checksum: int) -> None:
        self.name = path
        self._reader = reader
        self._head = head
        self._size = size
        self._position = 0
        self._checksum = checksum
        # The CRC-32 of the bytes before this offset.
        self._summed = 0
        self._sum = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}.get(whence)
        if start is None or start + offset < 0:
            raise ValueError("invalid position")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._head[self._position : self._position + len(view)]
        if not data and len(view) > 0 and self._position < self._size:
            data, _, _ = self._reader.read_part(self.name, self._position, len(view))
        view[: len(data)] = data
        self._advance(data)
        return len(data)

    def readall(self) -> bytes:
        data = self._reader.read(self.name, self._position, TO_END)
        self._advance(data)
        return data

    def _advance(self, data: bytes) -> None:
        if self._checksum != 0 and self._position == self._summed:
            found = zlib.crc32(data, self._sum)
            # If this raises, nothing is read: another try reads and checks the same bytes.
            if self._position + len(data) == self._size:
                check(found == self._checksum & 0xFFFFFFFF, self.name)
            self._sum = found
            self._summed += len(data)
        self._position += len(data)


def _joined(directory: str, entry: Entry) -> str:
    name = os.fsdecode(bytes.fromhex(entry["path_hex"])) if "path_hex" in entry else entry["path"]
    return f"{directory}/{name}" if directory else name


def _listed(path: str, entry: Entry) -> dict[str, Any]:
    found = _info(path, entry)
    if found["islink"] and found["type"] == "directory":
        found["type"] = "other"
    return found


def _info(path: str, entry: Entry) -> dict[str, Any]:
    kind = entry["kind"]
    found: dict[str, Any] = {
        "name": path,
        "type": kind if kind in ("file", "directory") else "other",
        "size": entry["size_bytes"],
        "mode": _FILE_TYPES[kind] | int(entry["mode"], 8),
        "uid": entry["uid"],
        "gid": entry["gid"],
        "nlink": entry["links"],
        "mtime": entry["modified_seconds"] + entry["modified_nanoseconds"] / 1e9,
        "islink": "target" in entry,
    }
    if found["islink"]:
        found["destination"] = entry["target"]
    return found
