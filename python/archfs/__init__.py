"""Mounts SquashFS, tar and ZIP archives as directories while a Python process needs them.

    with archfs.mount("data.sqfs") as root:         # unmounted at the end of the block
        ...
    root = archfs.mount_until_exit("data.sqfs")     # unmounted when this process ends, however it ends
    archfs.pack("directory", archive="data.sqfs")
    archfs.ls("data.sqfs", "train/*")               # no mount

The program archfs, which is part of this package, does the work. See docs/PYTHON.md.
"""

from typing import TYPE_CHECKING

from ._archive import Entry, Verified, extract, ls, open, read, verify
from ._errors import (
    AlreadyExists,
    CannotMount,
    DamagedArchive,
    Error,
    ExecutableNotFound,
    IsADirectory,
    MissingFile,
    NotMounted,
    PermissionDenied,
    TimedOut,
    UsageError,
)
from ._command import version as _version
from ._executable import executable
from ._info import ArchiveInfo, info
from ._mount import Mount, mount, mount_until_exit
from ._mounts import Listed, list, unmount, wait
from ._options import PathLike, Size, Time
from ._pack import PackSummary, pack

__all__ = [
    "AlreadyExists",
    "ArchiveInfo",
    "CannotMount",
    "DamagedArchive",
    "Entry",
    "Error",
    "ExecutableNotFound",
    "IsADirectory",
    "Listed",
    "MissingFile",
    "Mount",
    "NotMounted",
    "PackSummary",
    "PathLike",
    "PermissionDenied",
    "Size",
    "Time",
    "TimedOut",
    "UsageError",
    "Verified",
    "executable",
    "extract",
    "info",
    "list",
    "ls",
    "mount",
    "mount_until_exit",
    "open",
    "pack",
    "read",
    "unmount",
    "verify",
    "wait",
]

__version__: str

# A type checker would take any name for one of this package.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Only now, because this import takes longer than all others.
        import importlib.metadata

        try:
            return importlib.metadata.version(__name__)
        except importlib.metadata.PackageNotFoundError:
            # The package is used from its source directory.
            return _version()
