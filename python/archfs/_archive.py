"""Archives without a mount: what they contain, their files, and whether they are sound."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from typing import Any, BinaryIO, Optional, TypedDict, Union

from . import _command
from ._options import PathLike, Size, path, words


class _Always(TypedDict):
    path: str
    kind: str
    mode: str
    links: int
    uid: int
    gid: int
    size_bytes: int
    modified_seconds: int
    modified_nanoseconds: int


class Entry(_Always, total=False):
    """A line of `archfs ls --json` (docs/CLI.md) as a dict. The hexadecimal keys are there if a name is not
    UTF-8, and `target` for a symbolic link.
    """

    path_hex: str
    target: str
    target_hex: str


class Verified(TypedDict):
    """The last line of `archfs verify --json` (docs/CLI.md) as a dict. `faults` has the lines before it."""

    archive: str
    status: str
    seconds: float
    files: int
    folders: int
    links: int
    others: int
    bytes: int
    damaged: int
    unreadable: int
    notes: int
    faults: list[dict[str, Any]]


def ls(
    archive: PathLike,
    *paths: PathLike,
    all: bool = True,
    directory: bool = False,
    descend: bool = False,
    recursive: bool = False,
    offset: Optional[Size] = None,
    index: Optional[PathLike] = None,
) -> list[Entry]:
    """Lists `paths` in `archive`, or its root: `ls("data.sqfs", "train/**/*.jpeg")`.

    Unlike the command, it lists names that begin with a dot by default. Raises Error if a path is missing.
    """
    options = words(
        {
            "json": True,
            "all": all,
            "directory": directory,
            "descend": descend,
            "nested": recursive,
            "offset": offset,
            "index": index,
        }
    )
    command = ["ls", *options, "--", path(archive), *(path(one) for one in paths)]
    outcome = _command.run(command, needs=[archive])
    return [json.loads(line) for line in outcome.output.splitlines()]


def read(
    archive: PathLike,
    member: PathLike,
    *,
    recursive: bool = False,
    offset: Optional[Size] = None,
    index: Optional[PathLike] = None,
) -> bytes:
    """The contents of the file `member` of `archive`.

    Each call opens the archive again. Mount it to read many files.
    """
    options = words({"nested": recursive, "offset": offset, "index": index})
    return _command.run(["cat", *options, "--", path(archive), path(member)], needs=[archive]).output


def open(
    archive: PathLike,
    member: PathLike,
    *,
    recursive: bool = False,
    offset: Optional[Size] = None,
    index: Optional[PathLike] = None,
) -> BinaryIO:
    """The file `member` of `archive`, open for reading. All of it is read at once, as by `read`."""
    return io.BytesIO(read(archive, member, recursive=recursive, offset=offset, index=index))


def verify(
    archive: PathLike,
    *,
    recursive: bool = False,
    offset: Optional[Size] = None,
    index: Optional[PathLike] = None,
    threads: Optional[int] = None,
    cache: Optional[Size] = None,
) -> Verified:
    """Reads every record and every byte of `archive`. Its `status` is "sound", "damaged" (also if it is no
    archive) or "unreadable"; none of them raises an exception. Raises MissingFile if there is no such file.
    """
    options = words(
        {
            "json": True,
            "quiet": True,
            "nested": recursive,
            "offset": offset,
            "index": index,
            "threads": threads,
            "cache": cache,
        }
    )
    outcome = _command.execute(["verify", *options, "--", path(archive)])
    rows = [json.loads(line) for line in outcome.output.splitlines()]
    # Without a summary, the archive was not verified.
    if not rows or "status" not in rows[-1] or not os.path.exists(archive):
        raise _command.failure(outcome, [archive])
    verified: Verified = rows[-1]
    verified["faults"] = rows[:-1]
    return verified


def extract(
    *paths: PathLike,
    only: Union[PathLike, Iterable[PathLike]] = (),
    overwrite: bool = False,
    recursive: bool = False,
    partial: bool = False,
    threads: Optional[int] = None,
    offset: Optional[Size] = None,
    index: Optional[PathLike] = None,
) -> None:
    """Unpacks archives into a directory, which is the last of `paths`: `extract("data.sqfs", "data")`.

    With `only`, a path or several, just these and what is below them. If some files could not be written, the
    others were, and Error has a line for each in `notes`.
    """
    chosen = [only] if isinstance(only, (str, bytes, os.PathLike)) else list(only)
    options = words(
        {
            "quiet": True,
            "only": [path(one) for one in chosen],
            "overwrite": overwrite,
            "nested": recursive,
            "partial": partial,
            "threads": threads,
            "offset": offset,
            "index": index,
        }
    )
    _command.run(["extract", *options, "--", *(path(one) for one in paths)], needs=paths[:-1])
