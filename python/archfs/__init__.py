"""Mounts SquashFS, tar and ZIP archives as directories while a Python process needs them.

    with archfs.mount("data.sqfs") as root:         # unmounted at the end of the block
        ...
    root = archfs.mount_until_exit("data.sqfs")     # unmounted when this process ends, however it ends
    archfs.pack("directory", archive="data.sqfs")
    archfs.ls("data.sqfs", "train/*")               # no mount

The program archfs, which is part of this package, does the work. See docs/PYTHON.md.
"""

from ._archive import Entry, Verified, extract, ls, open, read, verify
from ._errors import (
    CannotMount,
    DamagedArchive,
    Error,
    ExecutableNotFound,
    MissingFile,
    NotMounted,
    TimedOut,
    UsageError,
)
from ._executable import executable
from ._info import ArchiveInfo, info
from ._mount import Mount, mount, mount_until_exit
from ._mounts import Listed, list, unmount, wait
from ._options import PathLike, Size, Time
from ._pack import PackSummary, pack

__all__ = [
    "ArchiveInfo",
    "CannotMount",
    "DamagedArchive",
    "Entry",
    "Error",
    "ExecutableNotFound",
    "Listed",
    "MissingFile",
    "Mount",
    "NotMounted",
    "PackSummary",
    "PathLike",
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
