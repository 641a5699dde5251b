"""Mounts that end with a block, with their Mount, or with this process."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

from . import _command, _holds, _scratch
from ._errors import Error, UsageError, missing
from ._options import PathLike, Size, Time, path, time, words

Options = Union[str, Sequence[str]]


class Mount:
    """Archives shown as a folder, from `mount()` until `unmount()`, the end of its `with` block, its own end,
    or that of the process that called `mount()`. In a forked child it does nothing: the parent holds it.
    """

    def __init__(self, place: str, archives: Sequence[str], arguments: Sequence[str], timeout: Optional[float]):
        self._path = Path(place)
        self._archives = tuple(archives)
        self._hold = _Hold(place)
        here = os.path.realpath(place)
        self._hold.place = here
        command = ["mount", f"--until-pid={os.getpid()}", *arguments, "--", *archives, here]
        try:
            _holds.take(here, self._hold, lambda: _mounted(command, archives, here, timeout))
            self._ends = weakref.finalize(self, _dropped, self._hold)
            # At the end of the process all is given back, and nobody has forgotten anything.
            self._ends.atexit = False
        except BaseException:  # Ctrl-C between two of these lines, say.
            _holds.give_back_or_tell(here, self._hold)
            raise

    @property
    def path(self) -> Path:
        """The folder. Made by archfs and removed at the end, unless it was there before."""
        return self._path

    @property
    def archives(self) -> tuple[str, ...]:
        """The archives that it shows."""
        return self._archives

    @property
    def closed(self) -> bool:
        """Whether it was unmounted."""
        return not self._ends.alive

    def unmount(self) -> None:
        """Needs the mount no more. Returns when it is gone, unless others hold it. Files of it that are still
        open, or mapped, stay readable until they are closed. May be called again, and does nothing then, or
        tries once more if it failed.
        """
        if self._ends.alive:
            self._hold.give_back()
            self._ends.detach()

    def stats(self) -> dict[str, Any]:
        """The numbers of the mount until now: requests, bytes, latencies (docs/STATS.md)."""
        numbers: dict[str, Any] = _command.told(["stats", "--json", "--", self._hold.place])
        return numbers

    def __enter__(self) -> Path:
        return self._path

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.unmount()
        except (Error, OSError) as failed:
            if error is None:
                raise
            # What went wrong in the block is what counts.
            _command.LOGGER.warning("%s", failed)

    def __fspath__(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        names = [repr(os.path.basename(name)) for name in self._archives]
        shown = names[0] if len(names) == 1 else f"{len(names)} archives"
        state = ", unmounted" if self.closed else ""
        return f"<archfs.Mount of {shown} at {str(self._path)!r}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Mount belongs to the process that made it; pass its path")


class _Hold:
    """What a Mount holds, to be given back also when the Mount itself is gone."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.pid = os.getpid()

    def give_back(self) -> None:
        if self.pid == os.getpid():
            _holds.give_back(self.place, self)


def mount(
    *archives: PathLike,
    at: Optional[PathLike] = None,
    subdir: Optional[PathLike] = None,
    offset: Optional[Size] = None,
    recursive: bool = False,
    index: Optional[PathLike] = None,
    cache: Optional[Size] = None,
    cache_idle: Optional[Time] = None,
    threads: Optional[int] = None,
    stage: Optional[PathLike] = None,
    preload: bool = False,
    allow_changes: bool = False,
    grace: Optional[Time] = None,
    linger: Optional[Time] = None,
    idle_timeout: Optional[Time] = None,
    options: Optional[Options] = None,
    log_file: Optional[PathLike] = None,
    stats_json: Optional[PathLike] = None,
    timeout: Optional[float] = None,
) -> Mount:
    """Mounts `archives`, one or more, as one folder; files can be read when it returns.

    Without `at` that is a private directory (0700) below /dev/shm, or below the temporary directory. Its name is
    derived from the job, the archives and the options. So all ranks of a node that mount the same archives in the
    same way share one mount, as processes and Mounts with the same `at` do. The last one out unmounts. The other
    arguments are the options of `archfs mount` (docs/CLI.md); None and False leave them to
    their ARCHFS_ variables and defaults. After `timeout` seconds without a mount it is TimedOut.

        with archfs.mount("data.sqfs") as root:
            ...
    """
    found = [path(archive) for archive in archives]
    if not found:
        raise UsageError("no archive to mount", "archfs.mount('data.sqfs')", 2)
    given = [options] if isinstance(options, str) else list(options or ())
    arguments = words(
        {
            "subdir": subdir,
            "offset": offset,
            "recursive": recursive,
            "index": index,
            "cache": cache,
            "cache_idle": time(cache_idle),
            "threads": threads,
            "stage": stage,
            "preload": preload,
            "allow_changes": allow_changes,
            "grace": time(grace),
            "linger": time(linger),
            "idle_timeout": time(idle_timeout),
            "log_file": log_file,
            "stats_json": stats_json,
        }
    )
    arguments += [f"-o{option}" for option in given]
    place = _shared_place(found, arguments) if at is None else os.path.abspath(path(at))
    return Mount(place, found, arguments, timeout)


def mount_until_exit(
    *archives: PathLike,
    at: Optional[PathLike] = None,
    subdir: Optional[PathLike] = None,
    offset: Optional[Size] = None,
    recursive: bool = False,
    index: Optional[PathLike] = None,
    cache: Optional[Size] = None,
    cache_idle: Optional[Time] = None,
    threads: Optional[int] = None,
    stage: Optional[PathLike] = None,
    preload: bool = False,
    allow_changes: bool = False,
    grace: Optional[Time] = None,
    linger: Optional[Time] = None,
    idle_timeout: Optional[Time] = None,
    options: Optional[Options] = None,
    log_file: Optional[PathLike] = None,
    stats_json: Optional[PathLike] = None,
    timeout: Optional[float] = None,
) -> Path:
    """Mounts `archives` as `mount()` does, for as long as this process runs; returns the folder.

    It is unmounted when the process ends: by returning, sys.exit, an exception, any signal, SIGKILL too. Called
    again with the same arguments it returns the same folder, as long as the archives are unchanged; else it
    unmounts that and mounts anew. A forked child that calls it takes part in the mount of its parent, and keeps it
    should the parent end first.
    """
    arguments: dict[str, Any] = {
        "at": _absolute(at),
        "subdir": subdir,
        "offset": offset,
        "recursive": recursive,
        "index": _absolute(index),
        "cache": cache,
        "cache_idle": cache_idle,
        "threads": threads,
        "stage": _absolute(stage),
        "preload": preload,
        "allow_changes": allow_changes,
        "grace": grace,
        "linger": linger,
        "idle_timeout": idle_timeout,
        "options": options,
        "log_file": _absolute(log_file),
        "stats_json": _absolute(stats_json),
    }
    names = [os.path.abspath(path(archive)) for archive in archives]
    with _until_exit_lock:
        kept = _until_exit.setdefault(f"{names} {arguments}", _Kept())
    with kept.lock:
        return kept.path(names, arguments, timeout)


class _Kept:
    """What `mount_until_exit` has mounted for one set of arguments."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._mount: Optional[Mount] = None
        self._archives: list[tuple[object, ...]] = []

    def path(self, names: Sequence[str], arguments: dict[str, Any], timeout: Optional[float]) -> Path:
        """The folder: that of before, if it still shows the same. Needs the lock."""
        archives = [_identity(name) for name in names]
        made = self._mount
        ours = made if made is not None and made._hold.pid == os.getpid() else None
        if made is not None and archives == self._archives:
            if ours is not None and _answers(made.path):
                return made.path
            arguments = {**arguments, "at": made.path}
        if ours is not None and arguments["at"] is not None:
            # The place can be had once, so that of before goes first, unless it is all that there is.
            for name in names:
                _check_is_there(name)
            ours.unmount()
        self._mount = new = mount(*names, timeout=timeout, **arguments)
        self._archives = archives
        if ours is not None:
            ours.unmount()
        return new.path


_until_exit: dict[str, _Kept] = {}
# Guards the dict. What is mounted has a lock of its own, so that nobody waits for a mount of something else.
_until_exit_lock = threading.RLock()


def _after_fork() -> None:
    global _until_exit_lock
    _until_exit_lock = threading.RLock()
    for kept in _until_exit.values():
        kept.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _mounted(command: Sequence[str], archives: Sequence[str], place: str, timeout: Optional[float]) -> None:
    outcome = _command.run(command, needs=archives, timeout=timeout)
    # Where SIGCHLD is ignored, the status of a child is not told.
    if not os.path.ismount(place):
        raise _command.failure(outcome, archives)


def _dropped(hold: _Hold) -> None:
    """A Mount was collected, and nobody had called unmount()."""
    if hold.pid != os.getpid() or not _holds.give_back_or_tell(hold.place, hold):
        return
    warnings.warn(f"{hold.place}: unmounted, as its Mount was dropped", ResourceWarning, stacklevel=2)


# What batch systems call the job, in its environment.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")


def _shared_place(archives: Sequence[str], arguments: Sequence[str]) -> str:
    """The mount point of all processes of this user and job that mount these archives, unchanged, with these
    options. archfs makes the directory, and the last process removes it. A directory of that name that belongs to
    another user is left to them: this process then has a mount point of its own."""
    try:
        # The same path is another mount point in a container.
        namespace = os.readlink("/proc/self/ns/mnt")
    except OSError:
        namespace = ""
    job = [os.environ.get(name, "") for name in _JOB_VARIABLES]
    # No path: ranks may have different working directories.
    identities = [_identity(name)[1:] or (os.path.abspath(name),) for name in archives]
    digest = hashlib.sha256(repr((namespace, job, identities, list(arguments))).encode(errors="surrogateescape"))
    directory = "/dev/shm" if _scratch.is_writable("/dev/shm") else _scratch.temporary()
    shared = os.path.join(directory, f"archfs-{os.getuid()}-{digest.hexdigest()[:32]}")
    return os.path.join(directory, _scratch.unguessable()) if _is_foreign(shared) else shared


def _is_foreign(place: str) -> bool:
    """Whether another user has taken this name."""
    try:
        found, parent = os.lstat(place), os.lstat(os.path.dirname(place))
    except PermissionError:
        return True
    except OSError:  # Nothing is there, or a stale mount, which archfs clears.
        return False
    # The root of a mount has the owner that its archive says.
    return found.st_dev == parent.st_dev and found.st_uid != os.getuid()


def _absolute(given: Optional[PathLike]) -> Optional[str]:
    """What is meant by it also after os.chdir."""
    return None if given is None else os.path.abspath(path(given))


def _answers(place: Path) -> bool:
    """Whether something is mounted there, and its daemon lives. stat alone is answered by the kernel, which
    remembers; statvfs is not."""
    try:
        os.statvfs(place)
    except OSError:
        return False
    return os.path.ismount(place)


def _check_is_there(name: str) -> None:
    try:
        os.stat(name)
    except FileNotFoundError as error:
        raise missing(Error(f"{name}: {error.strerror}"), name) from None


def _identity(name: str) -> tuple[object, ...]:
    try:
        found = os.stat(name)
    except OSError:
        return (name,)
    return (name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
