"""Python values as command line arguments."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
from collections.abc import Mapping
from typing import Any, Callable, Optional, TypedDict, Union

from ._errors import Function, public

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""A path. Names that are not UTF-8 are passed as bytes, or as the str that os.fsdecode returns."""

Size = Union[int, str]
"""A number of bytes, or a text such as "512M" or "4G"."""

Time = Union[int, float, str]
"""Seconds, or a text such as "90s", "15m" or "2h"."""


# The schemes of URLs that archfs reads.
URLS = ("https", "http", "s3")

# A URL, perhaps with a mistyped scheme: archfs hides its secrets only if it gets it as it is.
_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

class ContentOptions(TypedDict, total=False):
    """Keywords of all functions that open an archive: what it contains. `recursive` is an old name of `nested`."""

    nested: bool
    recursive: bool
    names: Optional[str]
    offset: Optional[Size]
    index: Optional[PathLike]


class MountOptions(ContentOptions, total=False):
    """Keywords of `mount` and `mount_until_exit`: the options of `archfs mount` (docs/CLI.md)."""

    subdir: Optional[PathLike]
    overlay: Optional[PathLike]
    partial: bool
    cache: Optional[Size]
    cache_idle: Optional[Time]
    threads: Optional[int]
    cpus: Optional[str]
    stage: Optional[PathLike]
    stage_wait: bool
    stage_keep: Optional[Size]
    readahead: Optional[str]
    preload: bool
    together: Optional[str]
    together_directory: Optional[PathLike]
    together_interface: Optional[str]
    together_bandwidth: Optional[Size]
    archive_cache: Optional[str]
    no_name_readahead: bool
    allow_changes: bool
    grace: Optional[Time]
    linger: Optional[Time]
    idle_timeout: Optional[Time]
    log_file: Optional[PathLike]
    stats_json: Optional[PathLike]


# Names that options had, and their names now.
_OLD_NAMES = {"recursive": "nested"}

# Options whose values are times, and paths of files.
TIMES = ("cache_idle", "grace", "linger", "idle_timeout")
PATHS = ("index", "stage", "together_directory", "log_file", "stats_json")


def takes(options: type) -> Callable[[Function], Function]:
    """Makes a function that takes `**keywords` show the keys of `options`, a TypedDict, as its keyword arguments, and
    raise TypeError for any other.
    """

    def decorate(function: Function) -> Function:
        # The keys of a TypedDict, also those that it inherits.
        names = set(options.__annotations__)
        own = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
        fixed = {one.name for one in own}

        @public
        @functools.wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            unknown = keywords.keys() - names - fixed
            if unknown:
                name = min(unknown)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*arguments, **keywords)

        shown = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in sorted(names)]
        setattr(checked, "__signature__", inspect.Signature([*own, *shown]))
        return checked  # type: ignore[return-value]

    return decorate


def path(value: PathLike) -> str:
    """A path in a form that archfs cannot take for an option."""
    return os.fsdecode(value)


def archive(value: PathLike) -> str:
    """The name of an archive, which stays valid after os.chdir."""
    text = path(value)
    return text if _LIKE_URL.match(text) else os.path.abspath(text)


def is_url(archive: str) -> bool:
    """Whether an archive is at a URL that archfs reads."""
    return archive.partition("://")[0].lower() in URLS and "://" in archive


def shown(archive: str) -> str:
    """The name of an archive in messages: a URL without user, password and query."""
    if not _LIKE_URL.match(archive):
        return archive
    scheme, _, rest = archive.partition("://")
    before, _, host = re.split("[?#]", rest)[0].rpartition("@")
    return f"{scheme}://{'...@' if before else ''}{host}"


def mount_words(options: MountOptions) -> list[str]:
    """The options of `archfs mount`."""
    values: dict[str, Any] = {**options}
    return words({name: time(value) if name in TIMES else value for name, value in values.items()})


def time(value: Optional[Time]) -> Optional[str]:
    """Whole seconds, as archfs expects them, rounded up."""
    if value is None or isinstance(value, str):
        return value
    return str(math.ceil(value))


def words(options: Mapping[str, Any]) -> list[str]:
    """`{"read_cost": 5, "force": True, "owner": None}` as `["--read-cost=5", "--force"]`. An option with a list
    of values is repeated.
    """
    made = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        option = "--" + _OLD_NAMES.get(name, name).replace("_", "-")
        if value is True:
            made.append(option)
            continue
        for one in value if isinstance(value, list) else [value]:
            text = str(one) if isinstance(one, (int, float)) else os.fsdecode(one)
            made.append(f"{option}={text}")
    return made
