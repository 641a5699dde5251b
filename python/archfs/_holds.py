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
from ._errors import Error, NotMounted


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
    with _lock:
        held = _places.setdefault(place, _Place())
        held.holders.add(holder)
    try:
        with held.lock:
            mount()
            held.is_held = True
    except BaseException:
        give_back(place, holder)
        raise


def give_back(place: str, holder: object) -> None:
    """`holder` needs `place` no more. Returns when the mount is gone, unless others hold it."""
    with _lock:
        held = _places.get(place)
        if held is None or holder not in held.holders:
            return
        held.holders.discard(holder)
    _unmount(place, held)


def _unmount(place: str, held: _Place) -> None:
    """Gives `place` back if nobody here needs it any more."""
    with held.lock:
        try:
            if held.is_held and not held.holders:
                held.is_held = False
                _command.run(["unmount", f"--held-by={os.getpid()}", "--", place])
        except NotMounted:
            pass  # Somebody else ended it.
        finally:
            with _lock:
                if not held.holders and not held.is_held and _places.get(place) is held:
                    del _places[place]


def _give_back_all() -> None:
    """The process ends, and its mounts would without this, too, but some milliseconds later."""
    with _lock:
        everything = list(_places.items())
    for place, held in everything:
        held.holders.clear()
        try:
            _unmount(place, held)
        except Error as error:
            _command.LOGGER.warning("%s", error)


def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _places.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(_give_back_all)
