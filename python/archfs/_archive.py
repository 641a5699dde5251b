"""Archives without a mount: what they contain, their files, and whether they are sound."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, TypedDict, Union

from . import _command
from ._options import ContentOptions, PathLike, Size, is_url, path, takes, words

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


@takes(ContentOptions)
def ls(
    archive: PathLike,
    *paths: PathLike,
    all: bool = True,
    directory: bool = False,
    descend: bool = False,
    **content: Unpack[ContentOptions],
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
            **content,
        }
    )
    command = ["ls", *options, "--", path(archive), *(path(one) for one in paths)]
    outcome = _command.run(command, needs=[archive])
    return [json.loads(line) for line in outcome.output.splitlines()]


@takes(ContentOptions)
def read(
    archive: PathLike,
    member: PathLike,
    **content: Unpack[ContentOptions],
) -> bytes:
    """The contents of the file `member` of `archive`.

    Each call opens the archive again. Mount it to read many files.
    """
    options = words(content)
    return _command.run(["cat", *options, "--", path(archive), path(member)], needs=[archive]).output


@takes(ContentOptions)
def open(
    archive: PathLike,
    member: PathLike,
    **content: Unpack[ContentOptions],
) -> BinaryIO:
    """The file `member` of `archive`, open for reading. All of it is read at once, as by `read`."""
    return io.BytesIO(read(archive, member, **content))


@takes(ContentOptions)
def verify(
    archive: PathLike,
    *,
    threads: Optional[int] = None,
    cache: Optional[Size] = None,
    **content: Unpack[ContentOptions],
) -> Verified:
    """Reads every record and every byte of `archive`. Its `status` is "sound", "damaged" (also if it is no
    archive) or "unreadable"; none of them raises an exception. Raises MissingFile if there is no such file.
    """
    options = words(
        {
            "json": True,
            "quiet": True,
            **content,
            "threads": threads,
            "cache": cache,
        }
    )
    outcome = _command.execute(["verify", *options, "--", path(archive)])
    rows = [json.loads(line) for line in outcome.output.splitlines()]
    # Without a summary, the archive was not verified.
    if not rows or "status" not in rows[-1] or not (is_url(path(archive)) or os.path.exists(archive)):
        raise _command.failure(outcome, [archive])
    verified: Verified = rows[-1]
    verified["faults"] = rows[:-1]
    return verified


@takes(ContentOptions)
def extract(
    *paths: PathLike,
    directory: Optional[PathLike] = None,
    only: Union[PathLike, Iterable[PathLike]] = (),
    overwrite: bool = False,
    partial: bool = False,
    threads: Optional[int] = None,
    **content: Unpack[ContentOptions],
) -> None:
    """Unpacks archives into a directory: `extract("data.sqfs", "data")`, or `extract("data.sqfs", directory="data")`.

    With `only`, a path or several, just these and what is below them. If some files could not be written, the
    others were, and Error has a line for each in `notes`.
    """
    chosen = [only] if isinstance(only, (str, bytes, os.PathLike)) else list(only)
    options = words(
        {
            "quiet": True,
            "only": [path(one) for one in chosen],
            "overwrite": overwrite,
            "partial": partial,
            "threads": threads,
            **content,
        }
    )
    given = [*paths] if directory is None else [*paths, directory]
    _command.run(["extract", *options, "--", *(path(one) for one in given)], needs=given[:-1])
