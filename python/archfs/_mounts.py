"""Mounts that other processes made, or that must end by name."""

from __future__ import annotations

import builtins
import json
from typing import Any, Optional, TypedDict

from . import _command
from ._errors import public
from ._options import PathLike, Time, path, time, words


class _Always(TypedDict):
    mountpoint: str
    archives: builtins.list[str]
    daemon: Optional[int]
    holders: builtins.list[dict[str, Any]]
    kept: bool
    state: str


class Listed(_Always, total=False):
    """A line of `archfs list --json` (docs/CLI.md) as a dict. `mountpoint_hex` is there if the mount point is
    not UTF-8.
    """

    mountpoint_hex: str


@public
def list() -> builtins.list[Listed]:
    """This user's archfs mounts on this node, whatever process made them."""
    outcome = _command.run(["list", "--json"])
    return [json.loads(line) for line in outcome.output.splitlines()]


@public
def wait(mount_point: PathLike, timeout: Optional[Time] = None) -> None:
    """Waits until an archfs mount at `mount_point`, which another process makes, can be read. Raises TimedOut
    after `timeout`.
    """
    _command.run(["wait", *words({"timeout": time(timeout)}), "--", path(mount_point)])


@public
def unmount(mount_point: PathLike, *, lazy: bool = False) -> None:
    """Unmounts the archfs mount at `mount_point`, or clears a stale one. Raises Error if it is in use, unless it
    is `lazy`: then open files stay readable until they are closed.
    """
    _command.run(["unmount", *words({"lazy": lazy}), "--", path(mount_point)])
