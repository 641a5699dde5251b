"""Exceptions for failures of archfs, with its message, hint and exit status."""

from __future__ import annotations

import errno
import functools
import os
import re
import shlex
from typing import Any, Callable, Optional, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


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


class _OfSystem(Error):
    """An Error that is also an OSError, with its errno."""

    filename: Any
    _errno = errno.EIO

    def __init__(
        self, message: str, hint: Optional[str] = None, status: int = 1, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint, status, notes)
        self.errno: Optional[int] = self._errno
        self.strerror: Optional[str] = os.strerror(self._errno)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"filename": self.filename})


class MissingFile(_OfSystem, FileNotFoundError):
    """A file or directory does not exist, here or in the archive; `filename` is its path."""

    _errno = errno.ENOENT


class PermissionDenied(_OfSystem, PermissionError):
    """This user may not read or write it; `filename` is its path."""

    _errno = errno.EACCES


class IsADirectory(_OfSystem, IsADirectoryError):
    """A file was expected; `filename` is the path of the directory."""

    _errno = errno.EISDIR


class AlreadyExists(_OfSystem, FileExistsError):
    """A file that would be written exists; `filename` is its path."""

    _errno = errno.EEXIST


class ExecutableNotFound(MissingFile):
    """The program archfs was not found."""


_BY_STATUS = {2: UsageError, 3: DamagedArchive, 4: CannotMount, 5: NotMounted, 6: TimedOut}

# How messages of status 1 end, after the path.
_BY_END: tuple[tuple[str, type[_OfSystem]], ...] = (
    ("no such path in the archive", MissingFile),
    ("no such file", MissingFile),
    ("no such file or directory", MissingFile),
    ("permission denied", PermissionDenied),
    ("is a directory", IsADirectory),
    ("is a directory, not an archive", IsADirectory),
    ("already exists", AlreadyExists),
)


def of_status(status: int, message: str, hint: Optional[str], notes: tuple[str, ...]) -> Error:
    """The exception for a run of archfs with exit status `status`."""
    hint = None if hint is None else in_python(hint)
    message = re.sub("^--([a-z-]+): ", lambda found: f"{found[1].replace('-', '_')}: ", message)
    if status == 1:
        for end, kind in _BY_END:
            if message.lower().endswith(f": {end}"):
                error = kind(message, hint, status, notes)
                # What failed may stand between the path and the cause: `PATH: cannot open: Permission denied`.
                error.filename = re.sub(": cannot [a-z ]+$", "", message[: -len(end) - 2])
                return error
    return _BY_STATUS.get(status, Error)(message, hint, status, notes)


# Options in hints that are keywords here, perhaps with the name of their value, and commands that are functions.
_OPTION = re.compile(
    "--(allow-changes|cache|force|index|keep-going|lazy|names|nested|offset|only|overwrite|owner|partial|subdir|threads)"
    "(?![\\w-])(?:[ =]([A-Z:]+)(?![\\w]))?"
)
_HAS_VALUE = ("cache", "index", "names", "offset", "only", "owner", "subdir", "threads")
_WORD = r"(?:'[^']*'|[^-`'\"();,\s](?:[^`'\"();\s]*[^`'\"();,\s])?)"
_FUNCTION = re.compile(rf"archfs (ls|info|verify|list)((?: {_WORD})*)(?=[`;),]|$)")
_COMMAND = re.compile(r"archfs (doctor|gc|index|stats)\b")


def in_python(hint: str) -> str:
    """A hint of the program in terms of this package: `use force=True to replace it`."""

    def keyword(found: re.Match[str]) -> str:
        value = found[2] or ("..." if found[1] in _HAS_VALUE else "True")
        return f"{found[1].replace('-', '_')}={value}"

    def call(found: re.Match[str]) -> str:
        return f"archfs.{found[1]}({', '.join(map(repr, shlex.split(found[2])))})"

    hint = _FUNCTION.sub(call, hint)
    return _OPTION.sub(keyword, _COMMAND.sub(r"python -m archfs \1", hint))


def public(function: Function) -> Function:
    """Makes an Error of a function of this package show the caller's line, and not those inside the package."""

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Error as error:
            raise error.with_traceback(None)

    return called  # type: ignore[return-value]


def missing(error: Error, path: str) -> MissingFile:
    """`error` as a MissingFile for `path`."""
    found = MissingFile(error.message, error.hint, error.status, error.notes)
    found.filename = path
    return found


def _again(
    kind: type[Error], message: str, hint: Optional[str], status: int, notes: tuple[str, ...]
) -> Error:
    return kind(message, hint, status, notes)
