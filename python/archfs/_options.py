"""Python values as command line arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Optional, Union

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""A path. Names that are not UTF-8 are passed as bytes, or as the str that os.fsdecode returns."""

Size = Union[int, str]
"""A number of bytes, or a text such as "512M" or "4G"."""

Time = Union[int, float, str]
"""Seconds, or a text such as "90s", "15m" or "2h"."""

Value = Union[None, bool, int, float, PathLike, list[str]]


def path(value: PathLike) -> str:
    """A path in a form that archfs cannot take for an option."""
    return os.fsdecode(value)


def time(value: Optional[Time]) -> Optional[str]:
    """Whole seconds, as archfs expects them, rounded up."""
    if value is None or isinstance(value, str):
        return value
    return str(math.ceil(value))


def words(options: Mapping[str, Value]) -> list[str]:
    """`{"read_cost": 5, "force": True, "owner": None}` as `["--read-cost=5", "--force"]`. An option with a list
    of values is repeated.
    """
    made = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        option = "--" + name.replace("_", "-")
        if value is True:
            made.append(option)
            continue
        for one in value if isinstance(value, list) else [value]:
            text = str(one) if isinstance(one, (int, float)) else os.fsdecode(one)
            made.append(f"{option}={text}")
    return made
