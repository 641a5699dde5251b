"""The leases of this process: one for each mount point, for any number of Mounts and threads.

The daemon of a mount watches this process, so the lease ends when the process does. To end it earlier, `archfs
unmount --held-by` is run. That unmounts, unless other processes hold the mount.

When the process exits normally, an exit handler releases every lease. It is registered when this package is
imported, so handlers registered later run before it and can still read the files.

A holder is registered before the mount is requested. So if another Mount of the same mount point is collected
in between, even on the same thread, it does not unmount. A forked child starts without leases: it must not
release those of its parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Callable

from . import _command
from ._errors import Error, NotMounted, TimedOut


class _MountPoint:
    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.is_held = False
        # Guards is_held. Held while mounting or unmounting, so that one thread does so at a time.
        self.lock = threading.RLock()


_mount_points: dict[str, _MountPoint] = {}
# Guards the dict. No other lock is taken while it is held.
_lock = threading.RLock()


def take(mount_point: str, holder: object, mount: Callable[[], None]) -> None:
    """Calls `mount`; from then on `holder` holds `mount_point`, an absolute path without links."""
    try:
        with _lock:
            held = _mount_points.setdefault(mount_point, _MountPoint())
            held.holders.add(holder)
        with held.lock:
            _mount(held, mount)
    except BaseException:
        release_or_log(mount_point, holder)
        raise


def _mount(held: _MountPoint, mount: Callable[[], None]) -> None:
    try:
        mount()
        held.is_held = True
    except BaseException as error:
        # After an interrupt or a time-out it is unknown whether the mount exists.
        if isinstance(error, TimedOut) or not isinstance(error, Error):
            held.is_held = True
        raise


def release(mount_point: str, holder: object) -> None:
    """Ends the lease of `holder`. Returns when the mount is unmounted, unless others hold it. May be repeated
    if it fails.
    """
    with _lock:
        held = _mount_points.get(mount_point)
        if held is None:
            return
        held.holders.discard(holder)
    _unmount(mount_point, held)


def release_or_log(mount_point: str, holder: object) -> bool:
    """Like `release`, but logs errors instead of raising: for callers that already handle an error, or run
    where no caller could catch it. A failure is retried when the process exits.
    """
    try:
        release(mount_point, holder)
    except (Error, OSError) as error:
        _command.LOGGER.warning("%s", error)
        return False
    return True


def _unmount(mount_point: str, held: _MountPoint) -> None:
    """Releases `mount_point` if this process has no holders left."""
    with held.lock:
        try:
            if held.is_held and not held.holders:
                _command.run(["unmount", f"--held-by={os.getpid()}", "--", mount_point])
                held.is_held = False
        except NotMounted:
            held.is_held = False  # Another process has unmounted it.
        finally:
            with _lock:
                if not held.holders and not held.is_held and _mount_points.get(mount_point) is held:
                    del _mount_points[mount_point]


def _release_all() -> None:
    """Runs when the process exits. Without this its mounts would be unmounted some milliseconds later."""
    with _lock:
        everything = list(_mount_points.items())
    for mount_point, held in everything:
        # Do not wait for a daemon thread that is still mounting: its mount ends with this process.
        if not held.lock.acquire(blocking=False):
            continue
        try:
            held.holders.clear()
            _unmount(mount_point, held)
        except (Error, OSError) as error:
            _command.LOGGER.warning("%s", error)
        finally:
            held.lock.release()


def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _mount_points.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(_release_all)
