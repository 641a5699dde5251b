"""Exceptions for failures of archfs, with its message, hint and exit status."""

from __future__ import annotations

import errno
import os
from typing import Any, Optional


class Error(Exception):
    """archfs failed. `str()` is its message, with its hint on the next line."""

    def __init__(
        self, message: str, hint: Optional[str] = None, status: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        """The message: what failed, and why."""
        self.hint = hint
        """What to do about it, if archfs knows."""
        self.status = status
        """The exit status of archfs (docs/CLI.md)."""
        self.notes = notes
        """Further messages, such as a line for each file that could not be packed."""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickles unchanged, for example in a pool of processes.
        return _again, (type(self), self.message, self.hint, self.status, self.notes)


class UsageError(Error, ValueError):
    """Invalid or contradictory arguments (status 2)."""


class DamagedArchive(Error):
    """The archive is damaged, or not in a format that archfs reads (status 3)."""


class CannotMount(Error):
    """Mounting is not possible here: no /dev/fuse, no fusermount3, or not your mount point (status 4)."""


class NotMounted(Error):
    """Nothing is mounted there, or not by you with archfs (status 5)."""


class TimedOut(Error, TimeoutError):
    """The time limit has passed (status 6)."""


class MissingFile(Error, FileNotFoundError):
    """A named file or directory does not exist; `filename` is its path."""

    def __init__(
        self, message: str, hint: Optional[str] = None, status: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint, status, notes)
        self.errno = errno.ENOENT
        self.strerror = os.strerror(errno.ENOENT)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"filename": self.filename})


class ExecutableNotFound(MissingFile):
    """The program archfs was not found."""


_BY_STATUS = {2: UsageError, 3: DamagedArchive, 4: CannotMount, 5: NotMounted, 6: TimedOut}


def of_status(status: int, message: str, hint: Optional[str], notes: tuple[str, ...]) -> Error:
    """The exception for a run of archfs with exit status `status`."""
    return _BY_STATUS.get(status, Error)(message, hint, status, notes)


def missing(error: Error, path: str) -> MissingFile:
    """`error` as a MissingFile for `path`."""
    found = MissingFile(error.message, error.hint, error.status, error.notes)
    found.filename = path
    return found


def _again(
    kind: type[Error], message: str, hint: Optional[str], status: int, notes: tuple[str, ...]
) -> Error:
    return kind(message, hint, status, notes)
