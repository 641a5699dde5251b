"""What goes wrong, as exceptions: archfs's own line and hint, and its exit status."""

from __future__ import annotations

import errno
import os
from typing import Any, Optional


class Error(Exception):
    """archfs failed. `str()` is its message, and its hint on a line below."""

    def __init__(
        self, message: str, hint: Optional[str] = None, status: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        """What went wrong, and why."""
        self.hint = hint
        """What to do about it, if archfs knows."""
        self.status = status
        """The exit status of archfs (docs/CLI.md)."""
        self.notes = notes
        """What it said besides: a line for each file that could not be packed, say."""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # As it is, also behind the pipe of a pool of processes.
        return _again, (type(self), self.message, self.hint, self.status, self.notes)


class UsageError(Error, ValueError):
    """Arguments that archfs does not take, or that contradict each other (status 2)."""


class DamagedArchive(Error):
    """The archive is damaged, or not one that archfs reads (status 3)."""


class CannotMount(Error):
    """Mounting is impossible here: no /dev/fuse, no fusermount3, a place that is not yours (status 4)."""


class NotMounted(Error):
    """Nothing is mounted there, or not by archfs for you (status 5)."""


class TimedOut(Error, TimeoutError):
    """It took too long (status 6)."""


class MissingFile(Error, FileNotFoundError):
    """A file or folder that was named is not there; `filename` is its path."""

    def __init__(
        self, message: str, hint: Optional[str] = None, status: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint, status, notes)
        self.errno = errno.ENOENT
        self.strerror = os.strerror(errno.ENOENT)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"filename": self.filename})


class ExecutableNotFound(MissingFile):
    """The program archfs is not there."""


_BY_STATUS = {2: UsageError, 3: DamagedArchive, 4: CannotMount, 5: NotMounted, 6: TimedOut}


def of_status(status: int, message: str, hint: Optional[str], notes: tuple[str, ...]) -> Error:
    """The exception for a run of archfs that ended with `status`."""
    return _BY_STATUS.get(status, Error)(message, hint, status, notes)


def missing(error: Error, path: str) -> MissingFile:
    """`error`, of which it is known that `path` is not there."""
    found = MissingFile(error.message, error.hint, error.status, error.notes)
    found.filename = path
    return found


def _again(
    kind: type[Error], message: str, hint: Optional[str], status: int, notes: tuple[str, ...]
) -> Error:
    return kind(message, hint, status, notes)
