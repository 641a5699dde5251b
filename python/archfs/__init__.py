"""Mounts SquashFS and tar archives as directories while a Python process needs them.

    with archfs.mount("data.sqfs") as root:         # unmounted at the end of the block
        ...
    root = archfs.mount_until_exit("data.sqfs")     # unmounted when this process ends, however it ends
    archfs.pack("directory", archive="data.sqfs")

The program archfs, which is part of this package, does the work. See docs/PYTHON.md.
"""

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
from ._options import PathLike, Size, Time
from ._pack import PackSummary, pack

__all__ = [
    "ArchiveInfo",
    "CannotMount",
    "DamagedArchive",
    "Error",
    "ExecutableNotFound",
    "MissingFile",
    "Mount",
    "NotMounted",
    "PackSummary",
    "PathLike",
    "Size",
    "Time",
    "TimedOut",
    "UsageError",
    "executable",
    "info",
    "mount",
    "mount_until_exit",
    "pack",
]
