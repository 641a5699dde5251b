"""What this process holds: each place once, however many Mounts it has there, and whichever thread asks.

The daemon of a mount watches this process, so the end of the process ends its hold, whatever it is. Giving
it back before that is `archfs unmount --held-by`: the mount goes then, unless other processes hold it.

At the usual end of the process an exit handler gives everything back. It was registered when this package was
imported, so handlers that are registered later run before it and still have the files.

A hold is counted before it is asked for. So a Mount of the same place that is collected meanwhile, in the same
thread even, does not take the last one away. A forked child starts with nothing: what its parent holds is not its
to give back.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Callable

from . import _command
from ._errors import Error, NotMounted, TimedOut


class _Place:
    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.is_held = False
        # Guards is_held, and that only one thread mounts or unmounts here.
        self.lock = threading.RLock()


_places: dict[str, _Place] = {}
# Guards the dict; taken before no other lock.
_lock = threading.RLock()


def take(place: str, holder: object, mount: Callable[[], None]) -> None:
    """Calls `mount`, after which `holder` holds `place`, an absolute path without links."""
    try:
        with _lock:
            held = _places.setdefault(place, _Place())
            held.holders.add(holder)
        with held.lock:
            _mount(held, mount)
    except BaseException:
        give_back_or_tell(place, holder)
        raise


def _mount(held: _Place, mount: Callable[[], None]) -> None:
    try:
        mount()
        held.is_held = True
    except BaseException as error:
        # Whoever stops waiting, by Ctrl-C or a time limit, does not know whether it was mounted.
        if isinstance(error, TimedOut) or not isinstance(error, Error):
            held.is_held = True
        raise


def give_back(place: str, holder: object) -> None:
    """`holder` needs `place` no more. Returns when the mount is gone, unless others hold it. May be called again
    if it fails."""
    with _lock:
        held = _places.get(place)
        if held is None:
            return
        held.holders.discard(holder)
    _unmount(place, held)


def give_back_or_tell(place: str, holder: object) -> bool:
    """As `give_back`, for where something else went wrong, or nobody is there to catch what this raises: the logger
    is told. What failed is tried again at the end of the process."""
    try:
        give_back(place, holder)
    except (Error, OSError) as error:
        _command.LOGGER.warning("%s", error)
        return False
    return True


def _unmount(place: str, held: _Place) -> None:
    """Gives `place` back if nobody here needs it any more."""
    with held.lock:
        try:
            if held.is_held and not held.holders:
                _command.run(["unmount", f"--held-by={os.getpid()}", "--", place])
                held.is_held = False
        except NotMounted:
            held.is_held = False  # Somebody else ended it.
        finally:
            with _lock:
                if not held.holders and not held.is_held and _places.get(place) is held:
                    del _places[place]


def _give_back_all() -> None:
    """The process ends, and its mounts would without this, too, but some milliseconds later."""
    with _lock:
        everything = list(_places.items())
    for place, held in everything:
        # A thread that still mounts there, a daemon, keeps nobody waiting: its mount goes with this process.
        if not held.lock.acquire(blocking=False):
            continue
        try:
            held.holders.clear()
            _unmount(place, held)
        except (Error, OSError) as error:
            _command.LOGGER.warning("%s", error)
        finally:
            held.lock.release()


def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _places.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(_give_back_all)
