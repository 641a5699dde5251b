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
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _command, _leases, _scratch
from ._errors import Error, IsADirectory, MissingFile, UsageError, missing, public
from ._options import PATHS, MountOptions, PathLike, is_url, mount_words, path, shown, takes
from ._options import archive as absolute_archive

if TYPE_CHECKING:
    from typing_extensions import Unpack

Options = Union[str, Sequence[str]]


class Mount:
    """Archives shown as a directory. It is mounted from `mount()` until `unmount()`, the end of its `with`
    block, its own collection, or the exit of the process that called `mount()`. In a forked child it does
    nothing: the parent holds the mount.
    """

    def __init__(
        self, mount_point: str, archives: Sequence[str], arguments: Sequence[str], timeout: Optional[float]
    ) -> None:
        self._path = Path(mount_point)
        self._archives = tuple(archives)
        self._lease = _Lease(mount_point)
        resolved = os.path.realpath(mount_point)
        self._lease.mount_point = resolved
        command = ["mount", f"--until-pid={os.getpid()}", *arguments, "--", *archives, resolved]
        try:
            _leases.take(resolved, self._lease, lambda: _mounted(command, archives, resolved, timeout))
            self._ends = weakref.finalize(self, _dropped, self._lease)
            # At exit all mounts are given back, and a warning would be wrong.
            self._ends.atexit = False
        except BaseException:  # For example, Ctrl-C between two of these lines.
            _leases.release_or_log(resolved, self._lease)
            raise

    @property
    def path(self) -> Path:
        """The directory. If archfs created it, it is removed at the end."""
        return self._path

    @property
    def archives(self) -> tuple[str, ...]:
        """The archives it shows."""
        return self._archives

    @property
    def closed(self) -> bool:
        """Whether it was unmounted."""
        return not self._ends.alive

    @public
    def unmount(self) -> None:
        """Releases the mount. Returns when it is unmounted, unless others hold it. Open or mapped files stay
        readable until they are closed. Calling it again does nothing, or retries if it failed.
        """
        if self._ends.alive:
            self._lease.release()
            self._ends.detach()

    @public
    def stats(self) -> dict[str, Any]:
        """The counters of the mount so far: requests, bytes, latencies (docs/STATS.md)."""
        numbers: dict[str, Any] = _command.run_json(["stats", "--json", "--", self._lease.mount_point])
        return numbers

    def __enter__(self) -> Path:
        if self.closed:
            raise UsageError(f"{self._path}: this Mount was unmounted", "call archfs.mount again", 2)
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
            # An error of the block is more important.
            _command.LOGGER.warning("%s", failed)

    def __fspath__(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        names = [repr(os.path.basename(shown(name))) for name in self._archives]
        archives = names[0] if len(names) == 1 else f"{len(names)} archives"
        state = ", unmounted" if self.closed else ""
        return f"<archfs.Mount of {archives} at {str(self._path)!r}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Mount cannot be passed to another process; pass its path")


class _Lease:
    """The lease of a Mount. It can be released after the Mount itself was collected."""

    def __init__(self, mount_point: str) -> None:
        self.mount_point = mount_point
        self.pid = os.getpid()

    def release(self) -> None:
        if self.pid == os.getpid():
            _leases.release(self.mount_point, self)


@takes(MountOptions)
def mount(
    *archives: PathLike,
    at: Optional[PathLike] = None,
    options: Optional[Options] = None,
    timeout: Optional[float] = None,
    **keywords: Unpack[MountOptions],
) -> Mount:
    """Mounts `archives`, one or more, as one directory. Files can be read when it returns.

    Without `at`, the mount point is a private directory (0700) below /dev/shm, or below the temporary
    directory. Its name is derived from the job, the archives and the options. So all ranks on a node that
    mount the same archives in the same way share one mount, like processes and Mounts with the same `at`. The
    last holder to leave unmounts. The keywords are the options of `archfs mount` (docs/CLI.md); None
    and False mean their ARCHFS_ variables and defaults. Raises TimedOut after `timeout` seconds.

        with archfs.mount("data.sqfs") as root:
            ...
    """
    found = [path(archive) for archive in archives]
    if not found:
        raise UsageError("no archive to mount", "archfs.mount('data.sqfs')", 2)
    given = [options] if isinstance(options, str) else list(options or ())
    if "overlay" in keywords and _is_path("overlay", keywords["overlay"]):
        # Ranks with different working directories share a mount only if they name one layer.
        keywords["overlay"] = _absolute(keywords["overlay"])
    arguments = mount_words(keywords)
    arguments += [f"-o{option}" for option in given]
    mount_point = _shared_mount_point(found, arguments) if at is None else os.path.abspath(path(at))
    try:
        return Mount(mount_point, found, arguments, timeout)
    except (MissingFile, IsADirectory) as error:
        # As on the command line, where the mount point comes last.
        if at is None and len(found) > 1 and isinstance(error.filename, str):
            if os.path.abspath(error.filename) == os.path.abspath(found[-1]):
                error.hint = f"all of these are archives; to name the mount point: at={found[-1]!r}"
        raise


@takes(MountOptions)
def mount_until_exit(
    *archives: PathLike,
    at: Optional[PathLike] = None,
    options: Optional[Options] = None,
    timeout: Optional[float] = None,
    **keywords: Unpack[MountOptions],
) -> Path:
    """Mounts `archives` like `mount()` while this process runs; returns the directory.

    It is unmounted when the process ends: by returning, sys.exit, an exception or any signal, including
    SIGKILL. If called again with the same arguments while the archives are unchanged, it returns the same
    directory. If they have changed, it unmounts and remounts. A forked child that calls it joins the mount of
    its parent, and keeps it if the parent exits first.
    """
    # In one order, and without those that say nothing, because they identify the mount.
    given: dict[str, Any] = {**keywords}
    given = {name: value for name, value in sorted(given.items()) if value is not None and value is not False}
    named = {name: _absolute(value) if _is_path(name, value) else value for name, value in given.items()}
    arguments: dict[str, Any] = {"at": _absolute(at), "options": options, **named}
    names = [absolute_archive(archive) for archive in archives]
    with _until_exit_lock:
        kept = _until_exit.setdefault(f"{names} {arguments}", _Kept())
    with kept.lock:
        return kept.path(names, arguments, timeout)


class _Kept:
    """The mount of `mount_until_exit` for one set of arguments."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._mount: Optional[Mount] = None
        self._archives: list[tuple[object, ...]] = []

    def path(self, names: Sequence[str], arguments: dict[str, Any], timeout: Optional[float]) -> Path:
        """The directory: the existing one if it is still up to date. The caller holds the lock."""
        archives = [_identity(name) for name in names]
        made = self._mount
        ours = made if made is not None and made._lease.pid == os.getpid() else None
        if made is not None and archives == self._archives:
            if ours is not None and _answers(made.path):
                return made.path
            arguments = {**arguments, "at": made.path}
        if ours is not None and arguments["at"] is not None:
            # A given mount point must be unmounted first, but not if the new archives do not exist.
            for name in names:
                _check_is_there(name)
            ours.unmount()
        self._mount = new = mount(*names, timeout=timeout, **arguments)
        self._archives = archives
        if ours is not None:
            ours.unmount()
        return new.path


_until_exit: dict[str, _Kept] = {}
# Guards the dict. Each mount has its own lock, so that one mount does not wait for another.
_until_exit_lock = threading.RLock()


def _after_fork() -> None:
    global _until_exit_lock
    _until_exit_lock = threading.RLock()
    for kept in _until_exit.values():
        kept.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _mounted(command: Sequence[str], archives: Sequence[str], mount_point: str, timeout: Optional[float]) -> None:
    outcome = _command.run(command, needs=archives, timeout=timeout)
    # If SIGCHLD is ignored, the exit status of a child is lost.
    if not os.path.ismount(mount_point):
        raise _command.failure(outcome, archives)


def _dropped(lease: _Lease) -> None:
    """A Mount was collected without a call of unmount()."""
    if lease.pid != os.getpid() or not _leases.release_or_log(lease.mount_point, lease):
        return
    # Not a ResourceWarning, which Python does not show: a program that reads on finds an empty directory.
    text = "unmounted, because no variable refers to its Mount; keep the Mount, or use archfs.mount_until_exit"
    warnings.warn(f"{lease.mount_point}: {text}", RuntimeWarning, stacklevel=3)


# Variables in which batch systems pass the job's id.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")


def _shared_mount_point(archives: Sequence[str], arguments: Sequence[str]) -> str:
    """The mount point for all processes of this user and job that mount these archives, unchanged, with these
    options. archfs creates the directory, and the last process removes it. If another user owns a
    directory of that name, this process gets a mount point of its own.
    """
    try:
        # In a container the same path may be another mount point.
        namespace = os.readlink("/proc/self/ns/mnt")
    except OSError:
        namespace = ""
    job = [os.environ.get(name, "") for name in _JOB_VARIABLES]
    # Identities, not paths: ranks may have different working directories.
    identities = [_identity(name)[1:] or (absolute_archive(name),) for name in archives]
    digest = hashlib.sha256(repr((namespace, job, identities, list(arguments))).encode(errors="surrogateescape"))
    directory = "/dev/shm" if _scratch.is_writable("/dev/shm") else _scratch.temporary()
    shared = os.path.join(directory, f"archfs-{os.getuid()}-{digest.hexdigest()[:32]}")
    return os.path.join(directory, _scratch.unguessable()) if _is_foreign(shared) else shared


def _is_foreign(mount_point: str) -> bool:
    """Whether another user has taken this name."""
    try:
        found, parent = os.lstat(mount_point), os.lstat(os.path.dirname(mount_point))
    except PermissionError:
        return True
    except OSError:  # It does not exist, or is a stale mount, which archfs clears.
        return False
    # The root of a mount has the owner that its archive records.
    return found.st_dev == parent.st_dev and found.st_uid != os.getuid()


def _is_path(name: str, value: Any) -> bool:
    """Whether the value of this keyword is the path of a file. A layer may be in memory instead."""
    return name in PATHS or (name == "overlay" and value != "tmp")


def _absolute(given: Optional[PathLike]) -> Optional[str]:
    """The absolute path, which stays valid after os.chdir."""
    return None if given is None else os.path.abspath(path(given))


def _answers(mount_point: Path) -> bool:
    """Whether it is mounted and the daemon responds. The kernel answers stat from its cache, but not statvfs."""
    try:
        os.statvfs(mount_point)
    except OSError:
        return False
    return os.path.ismount(mount_point)


def _check_is_there(name: str) -> None:
    if is_url(name):
        return
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
