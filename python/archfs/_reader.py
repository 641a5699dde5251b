"""Reads archives without a mount: a client of the server in src/reader.

The first process that reads archives starts a server, `archfs read-server`. All processes of a job that read the
same archives with the same options connect to it, so their blocks are decompressed and kept in memory once. The
server exits soon after its last client. If it is killed, the next request starts another one.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Optional, cast

from . import _command
from ._archive import Entry
from ._direct import DirectReads, is_ours, is_right, may_have, receiving
from ._errors import Error
from ._options import PathLike, shown, words
from ._options import archive as absolute_archive

# Length of the rest, operation, offset, size; the path follows (src/reader/protocol.rs).
_REQUEST = struct.Struct("<IBQQ")
# Status, size of the file, length of the payload, checksum of the file.
_REPLY = struct.Struct("<BQQQ")
_LENGTH = 4
_READ, _DESCRIBE, _LIST, _DIRECT = 1, 2, 3, 4

# What the server says of direct reads: ask again, here they are, read by requests.
_LATER, _READY, _NEVER = 0, 1, 2
_DESCRIPTORS = 32

# Direct reads are asked for after this many requests, because the server lists the whole archive for them. If they
# are not ready, they are asked for again after as many.
_REQUESTS = 200

TO_END = (1 << 64) - 1

# How often a request is sent to another server if the first one was killed.
_TRIES = 3


class _Connection:
    """A connection to the server. The program may close its descriptor, and open its own file at that number."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
            found = os.fstat(self.socket.fileno())
        except BaseException:
            self.socket.close()
            raise
        self._identity = found.st_dev, found.st_ino

    def is_open(self) -> bool:
        """Whether the descriptor still is this connection."""
        return is_ours(self.socket.fileno(), self._identity)

    def close(self) -> None:
        if self.is_open():
            self.socket.close()
        else:
            self.socket.detach()


class Reader:
    """Reads of archives that are shown as one tree. May be used by several threads, and after a fork."""

    def __init__(self, archives: Sequence[PathLike], options: Mapping[str, Any]) -> None:
        self._archives = [absolute_archive(archive) for archive in archives]
        self._words = words(options)
        # The server is started now, so that an archive that cannot be opened is an error now.
        self._socket = self._start()
        self._owner = os.getpid()
        # Connections that no thread uses.
        self._free: list[_Connection] = []
        self._direct: Optional[DirectReads] = None
        # Requests until direct reads are asked for; negative for never.
        self._until_direct = -1 if os.environ.get("ARCHFS_DIRECT") == "off" else _REQUESTS
        # The server exits soon without a client.
        self._free.append(self._connect())

    @property
    def identity(self) -> str:
        """A text that is the same for the same archives, unchanged, with the same options."""
        return os.path.basename(self._socket)

    def read(self, member: PathLike, offset: int = 0, size: int = TO_END) -> bytes:
        """Bytes of a file: `size`, or fewer at its end."""
        start = offset
        data, size_of_file, checksum = self.read_part(member, offset, size)
        end = min(size_of_file, offset + size)
        if offset + len(data) >= end:
            return data
        parts = [data]
        while data and offset + len(data) < end:
            offset += len(data)
            data, _, _ = self.read_part(member, offset, end - offset)
            parts.append(data)
        data = b"".join(parts)
        if start == 0 and len(data) == size_of_file:
            check(is_right(data, checksum), member)
        return data

    def read_part(self, member: PathLike, offset: int, size: int) -> tuple[bytes, int, int]:
        """Bytes of a file, at least as many as one reply carries; the size of the file; and its checksum, if the
        bytes are the first but not all of them. All of them are checked.
        """
        if self._direct is not None and self._direct.has_archives:
            found = self._direct.read(os.fsencode(member), offset, size)
            if found is not None:
                return found
        elif self._until_direct >= 0:
            self._count_to_direct()
        size_of_file, data, checksum = self._ask(_READ, member, offset, size)
        if len(data) == size_of_file:
            check(is_right(data, checksum), member)
        return data, size_of_file, checksum

    def _count_to_direct(self) -> None:
        """Asks for direct reads if it is time."""
        self._until_direct -= 1
        if self._until_direct != 0:
            return
        self._until_direct = _REQUESTS
        connection = self._take()
        try:
            with receiving():
                state = self._receive_direct(connection.socket)
        except OSError:
            # The next request meets the same problem, and handles it. Or there is no room for the descriptors now.
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)
        if state == _NEVER:
            self._until_direct = -1

    def _receive_direct(self, connection: socket.socket) -> int:
        """Asks for direct reads, and takes them. Returns what the server says of them."""
        connection.sendall(_REQUEST.pack(_REQUEST.size - _LENGTH, _DIRECT, 0, 0))
        header, descriptors, _, _ = socket.recv_fds(connection, _REPLY.size, _DESCRIPTORS)
        try:
            # Python 3.11 ignores the flag for that.
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if len(header) < _REPLY.size:
                raise ConnectionResetError("the server has closed the connection")
            state = int(_REPLY.unpack(header)[1])
            if state != _READY:
                return state
            if not may_have(len(descriptors)):
                return _NEVER
            taken, descriptors = descriptors, []
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if self._direct is not None:
            self._direct.replace(taken)
            return state
        direct = DirectReads(taken)
        if self._direct is None:
            self._direct = direct
        else:  # Another thread was faster.
            direct.close()
        return state

    def describe(self, member: PathLike) -> Entry:
        """The object at a path; for a symbolic link its target."""
        return cast(Entry, json.loads(self._ask(_DESCRIBE, member)[1]))

    def list(self, member: PathLike) -> list[Entry]:
        """The entries of a directory, sorted. Their `path` is the name."""
        return [json.loads(line) for line in self._ask(_LIST, member)[1].splitlines()]

    def _ask(self, operation: int, member: PathLike, offset: int = 0, size: int = 0) -> tuple[int, bytes, int]:
        name = os.fsencode(member)
        message = _REQUEST.pack(_REQUEST.size - _LENGTH + len(name), operation, offset, size) + name
        for attempt in range(_TRIES):
            connection = self._take()
            try:
                connection.socket.sendall(message)
                status, size_of_file, length, checksum = _REPLY.unpack(_receive(connection.socket, _REPLY.size))
                payload = _receive(connection.socket, length)
            except ConnectionError:
                # The server was killed, and all connections with it.
                connection.close()
                self._forget()
                if attempt + 1 == _TRIES:
                    raise
                continue
            except BaseException:
                # After an interrupt, the rest of this reply would be taken for the next one.
                connection.close()
                raise
            self._free.append(connection)
            if status != 0:
                raise _error(payload, os.fsdecode(name))
            return size_of_file, payload, checksum
        raise AssertionError("unreachable")

    def _take(self) -> _Connection:
        if self._owner != os.getpid():
            # A forked child must not use the connections of its parent.
            self._forget()
            self._owner = os.getpid()
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return self._connect()
            if connection.is_open():
                return connection
            connection.close()

    def _forget(self) -> None:
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _connect(self) -> _Connection:
        for _ in range(_TRIES):
            try:
                return _Connection(self._socket)
            except (ConnectionRefusedError, FileNotFoundError):
                self._start_again()
        raise Error(f"{shown(self._archives[0])}: cannot connect to the process that reads it")

    def _start(self) -> str:
        """Starts a server unless there is one; returns the path of its socket, which only this user can use."""
        command = ["read-server", *self._words, "--", *self._archives]
        return os.fsdecode(_command.run(command, needs=self._archives).output.rstrip(b"\n"))

    def _start_again(self) -> None:
        # The name depends on the identity of the archives.
        started = self._start()
        if os.path.basename(started) != self.identity:
            changed = f"{shown(self._archives[0])}: changed since it was opened"
            raise Error(changed, "open it again, for example in a new process")
        self._socket = started

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._forget()
        if getattr(self, "_direct", None) is not None:
            cast(DirectReads, self._direct).close()


def _receive(connection: socket.socket, length: int) -> bytes:
    data = connection.recv(length, socket.MSG_WAITALL) if length else b""
    while len(data) < length:
        # A signal may have interrupted the wait.
        more = connection.recv(length - len(data), socket.MSG_WAITALL)
        if not more:
            raise ConnectionResetError("the server has closed the connection")
        data += more
    return data


def check(is_sound: bool, member: PathLike) -> None:
    """Raises OSError if the bytes of a file do not have its checksum."""
    if not is_sound:
        why = "its checksum (CRC-32) is wrong: its bytes are not those that were archived"
        raise OSError(errno.EIO, why, os.fsdecode(member))


def _error(payload: bytes, member: str) -> OSError:
    """An OSError of the class that belongs to the errno, such as FileNotFoundError."""
    failure = json.loads(payload)
    return OSError(failure["errno"], failure["message"], member)
