"""Finds the program archfs: the one of this package, unless ARCHFS_EXECUTABLE names another."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ._errors import ExecutableNotFound

VARIABLE = "ARCHFS_EXECUTABLE"


def executable() -> str:
    """The path of the program: ARCHFS_EXECUTABLE, or that of this package, or the first in PATH.

    Raises ExecutableNotFound if there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if _is_program(named):
            return os.path.abspath(named)
        raise ExecutableNotFound(f"{named}: not a program ({VARIABLE})", f"unset {VARIABLE}")
    for directory in _directories():
        program = os.path.join(directory, "archfs")
        if _is_program(program):
            return program
    found = shutil.which("archfs")
    if found is not None:
        return os.path.abspath(found)
    raise ExecutableNotFound(
        "archfs: program not found next to this package or in PATH",
        f"install the package again, or set {VARIABLE} to its path",
    )


def _directories() -> Iterator[str]:
    """Directories where an installer may have put it, closest to this package first."""
    package = Path(__file__).resolve().parent
    site = package.parent
    # pip install --target first, then --prefix and all others with the usual layout.
    yield str(site / "bin")
    if site.name in ("site-packages", "dist-packages") and len(site.parents) > 2:
        yield str(site.parents[2] / "bin")
    yield sysconfig.get_path("scripts")
    user = "posix_user"
    if sys.version_info >= (3, 10):
        user = sysconfig.get_preferred_scheme("user")
    yield sysconfig.get_path("scripts", user)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
