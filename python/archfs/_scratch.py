"""Temporary files.

tempfile is not used, because it picks its directory and names under a lock: a child that is forked while
another thread holds the lock would wait forever.
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
    """An unnamed file, open for reading and writing."""
    try:
        return os.fdopen(os.memfd_create("archfs"), "w+b")
    except (AttributeError, OSError):  # An old C library, or a sandbox that forbids it.
        path = os.path.join(temporary(), unguessable())
        file = open(path, "x+b", opener=_private)
        os.unlink(path)
        return file


@contextmanager
def directory() -> Iterator[str]:
    """A private directory, removed at the end with its contents."""
    path = os.path.join(temporary(), unguessable())
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def temporary() -> str:
    """The directory that tempfile would use."""
    if tempfile.tempdir is not None:
        return os.fsdecode(tempfile.tempdir)
    told = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for path in [*told, "/tmp", "/var/tmp", "/usr/tmp"]:
        if path and is_writable(path):
            return os.path.abspath(path)
    return os.getcwd()


def unguessable() -> str:
    """A name that no other process has or can guess."""
    return f"archfs-{os.getuid()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_writable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
