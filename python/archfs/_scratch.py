"""Files that are needed for a moment.

Not by Python's tempfile, which looks for its folder and its names under a lock: a child forked while another thread
has it would wait for ever.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


def nameless() -> BinaryIO:
    """A file without a name, to be written and read."""
    try:
        return os.fdopen(os.memfd_create("archfs"), "w+b")
    except (AttributeError, OSError):  # An old C library, or a sandbox that forbids it.
        path = os.path.join(temporary(), unguessable())
        file = open(path, "x+b", opener=_private)
        os.unlink(path)
        return file


@contextmanager
def folder() -> Iterator[str]:
    """A private folder, removed at the end with all that is in it."""
    path = os.path.join(temporary(), unguessable())
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def temporary() -> str:
    """The folder that tempfile would take."""
    if tempfile.tempdir is not None:
        return os.fsdecode(tempfile.tempdir)
    told = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for path in [*told, "/tmp", "/var/tmp", "/usr/tmp"]:
        if path and is_writable(path):
            return os.path.abspath(path)
    return os.getcwd()


def unguessable() -> str:
    """A name that nobody has taken, nor can."""
    return f"archfs-{os.getuid()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_writable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
