"""`archfs pack`: packs directories, files and other archives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Optional, TypedDict, Union

from . import _command, _scratch
from ._errors import public
from ._options import PathLike, Size, path, words


class _Always(TypedDict):
    archive: str
    format: str
    bytes: int
    stored_bytes: int
    seconds: float
    problems: int
    hidden: int
    excluded: int
    files: int
    notes: list[str]


class PackSummary(_Always, total=False):
    """The output of `archfs pack --json` (docs/CLI.md) as a dict. `format` (squashfs, tar or shards) decides
    which of the keys below it has.
    """

    folders: int
    symlinks: int
    specials: int
    failed: int
    hole_bytes: int
    metadata_bytes: int
    compressor: str
    level: Optional[int]
    block_size: int
    read_cost: int
    mean_decoded: float
    duplicates: int
    duplicate_bytes: int
    reused: int
    reused_bytes: int
    plain_blocks: int
    compressed_blocks: int
    fragments: int
    sparse: int
    hard_links: int
    devices: int
    shards: int
    samples: int
    classes: int


@public
def pack(
    *paths: PathLike,
    archive: Optional[PathLike] = None,
    force: bool = False,
    update: Optional[PathLike] = None,
    compressor: Optional[str] = None,
    fast: bool = False,
    profile: Optional[str] = None,
    read_cost: Optional[Size] = None,
    block_size: Optional[Size] = None,
    files_from: Union[None, PathLike, Iterable[PathLike]] = None,
    exclude: Iterable[str] = (),
    exclude_from: Optional[PathLike] = None,
    no_xattrs: bool = False,
    sparse: bool = False,
    map: Union[None, PathLike, Mapping[str, str]] = None,
    owner: Union[None, str, int, tuple[int, int]] = None,
    nested: bool = False,
    recursive: bool = False,
    names: Optional[str] = None,
    as_file: bool = False,
    one_file_system: bool = False,
    keep_going: bool = False,
    shards: Optional[Size] = None,
    shuffle: Optional[int] = None,
    labels: bool = False,
    threads: Optional[int] = None,
    cache: Optional[Size] = None,
) -> PackSummary:
    """Packs directories, files and archives into an archive: `pack("train", "train.sqfs")`, sources first, or
    `pack("train", archive="train.sqfs")`.

    The arguments are the options of `archfs pack` (docs/PACK.md). `files_from` is a file with one path per
    line, or the paths themselves (a list or any iterable except str). `exclude` has patterns of gitignore,
    and `exclude_from` is a file of them. `map` is a file of lines with a path and a new path, or a dict of
    path to new path. `owner` is a number, a pair of numbers, or "UID:GID". With `keep_going`, files
    that cannot be packed are counted as `problems` and logged to "archfs". Without it, Error has them as
    `notes`, and no archive is written.
    """
    given = [*paths] if archive is None else [*paths, archive]
    with ExitStack() as stack:
        lists = stack.enter_context(_listed(files_from, map))
        options = words(
            {
                "json": True,
                "quiet": True,
                "force": force,
                "update": update,
                "compressor": compressor,
                "fast": fast,
                "profile": profile,
                "read_cost": read_cost,
                "block_size": block_size,
                "exclude": [exclude] if isinstance(exclude, str) else list(exclude),
                "exclude_from": exclude_from,
                "no_xattrs": no_xattrs,
                "sparse": sparse,
                "owner": ":".join(str(number) for number in owner) if isinstance(owner, tuple) else owner,
                "nested": nested or recursive,
                "names": names,
                "as_file": as_file,
                "one_file_system": one_file_system,
                "keep_going": keep_going,
                "shards": shards,
                "shuffle": shuffle,
                "labels": labels,
                "threads": threads,
                "cache": cache,
                **lists,
            }
        )
        outcome = _command.execute(["pack", *options, "--", *(path(one) for one in given)])
    # If there is a summary, an archive was written, whatever the status says about skipped files.
    if not outcome.output.strip():
        raise _command.failure(outcome, given[:-1])
    _command.log(outcome.lines)
    summary: PackSummary = json.loads(outcome.output)
    return summary


@contextmanager
def _listed(
    files_from: Union[None, PathLike, Iterable[PathLike]], map: Union[None, PathLike, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """The options for lists: files are passed on, other lists are written to files first."""
    with _scratch.directory() as directory:
        options: dict[str, Any] = {}
        if isinstance(files_from, (str, bytes, os.PathLike)):
            options["files_from"] = files_from
        elif files_from is not None:
            options["files_from"] = os.path.join(directory, "files")
            options["null"] = True
            with open(options["files_from"], "wb") as file:
                file.writelines(os.fsencode(path(one)) + b"\0" for one in files_from)
        if isinstance(map, Mapping):
            options["map"] = os.path.join(directory, "map")
            with open(options["map"], "wb") as file:
                file.writelines(os.fsencode(f"{old}\t{new}\n") for old, new in map.items())
        elif map is not None:
            options["map"] = map
        yield options
