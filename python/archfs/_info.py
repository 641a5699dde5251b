"""`archfs info`: describes an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict

from . import _command
from ._options import ContentOptions, PathLike, path, takes, words

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Always(TypedDict):
    archive: str
    format: str
    bytes: int
    files: int
    folders: int
    links: int
    devices: int
    fifos: int
    sockets: int
    hard_links: int
    file_bytes: int
    file_mean: int
    file_largest: int
    sizes: list[dict[str, Any]]
    decoded: dict[str, int]
    packed: dict[str, int]
    within: list[dict[str, Any]]
    advice: list[str]


class ArchiveInfo(_Always, total=False):
    """The output of `archfs info --json` (docs/CLI.md) as a dict. It has `squashfs` or `tar`, by `format`. With
    `top`, it also has the last two keys.
    """

    squashfs: dict[str, Any]
    tar: dict[str, Any]
    largest_files: list[dict[str, Any]]
    largest_directories: list[dict[str, Any]]


@takes(ContentOptions)
def info(
    archive: PathLike,
    *,
    top: Optional[int] = None,
    **content: Unpack[ContentOptions],
) -> ArchiveInfo:
    """Describes `archive` from its tables, without mounting it; also the `top` largest files and directories."""
    options = words({"json": True, "top": top, **content})
    found: ArchiveInfo = _command.run_json(["info", *options, "--", path(archive)], needs=[archive])
    return found
