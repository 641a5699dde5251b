"""Runs the program archfs, and turns its errors into exceptions.

When a function here returns or raises, the child process has exited. The messages of archfs become part of
the exception, or go to the logger "archfs". If standard error is a terminal, progress bars are shown there.
For that archfs gets a pseudo terminal, and everything except complete lines is passed on.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import select
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from . import _errors, _scratch
from ._executable import executable
from ._options import PathLike, is_url, path

LOGGER = logging.getLogger("archfs")

# Seconds a child may take to exit after SIGTERM, and seconds between two checks whether it has exited.
_END = 10.0
_LOOK = 0.1

# Errors of starting a program that exists.
_SHORT_OF = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

# What a progress bar prints before a line: a carriage return, and sequences that clear the line.
_DRAWN = re.compile(rb".*(?:\r|\x1b\[[0-9;?]*[A-Za-z])", re.DOTALL)

# The color of a word.
_COLOR = re.compile(rb"\x1b\[[0-9;]*m")

# A message of archfs: `archfs: error: TEXT`, in a batch job `archfs[NODE]: error: TEXT`.
_MESSAGE = re.compile(r"archfs(?:\[[^]]*\])?: (error|warning|note|hint): (.*)", re.DOTALL)

# The last of many errors.
_COUNT = re.compile(r": and \d+ more errors?$")

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}


class Line(NamedTuple):
    """A message of archfs, without its prefix."""

    text: str
    hint: Optional[str]
    level: int


class Outcome(NamedTuple):
    """The result of a run."""

    status: int
    output: bytes
    lines: list[Line]


def run(
    words: Sequence[str], *, needs: Sequence[PathLike] = (), timeout: Optional[float] = None
) -> Outcome:
    """Runs `archfs WORDS`. Raises Error if it fails, or MissingFile if one of `needs` does not exist."""
    outcome = execute(words, timeout)
    if outcome.status != 0:
        raise failure(outcome, needs)
    log(outcome.lines)
    return outcome


def version() -> str:
    """The version of the program."""
    return run(["--version"]).output.decode().split()[-1]


def run_json(words: Sequence[str], *, needs: Sequence[PathLike] = ()) -> Any:
    """Runs `archfs WORDS` and returns the JSON it prints. Raises the same errors as `run`."""
    outcome = run(words, needs=needs)
    if not outcome.output.strip():
        raise failure(outcome, needs)
    return json.loads(outcome.output)


def failure(outcome: Outcome, needs: Sequence[PathLike] = ()) -> _errors.Error:
    """The exception for a failed run. The status may be 0: if SIGCHLD is ignored, a child's status is lost."""
    status = outcome.status or 1
    if status < 0:
        return _errors.Error(f"signal {-status} killed archfs", None, 128 - status, _texts(outcome.lines))
    if not outcome.lines:
        return _errors.of_status(status, f"archfs exited with status {status}", None, ())
    last = outcome.lines[-1]
    rest = outcome.lines[:-1]
    errors = [line for line in rest if line.level == logging.ERROR]
    if errors and _COUNT.search(last.text):
        # The first error says more than the number of the others.
        first = errors[0]
        last, rest = first._replace(hint=first.hint or last.hint), [line for line in outcome.lines if line is not first]
    error = _errors.of_status(status, last.text, last.hint, _texts(rest))
    if status == 1:
        for need in needs:
            if is_url(path(need)):
                continue
            try:
                os.stat(path(need))
            except (FileNotFoundError, NotADirectoryError):
                return _errors.missing(error, path(need))
            except OSError:  # It may exist.
                pass
    return error


def log(lines: Sequence[Line]) -> None:
    """Logs the messages of a successful run."""
    for line in lines:
        LOGGER.log(line.level, "%s", line.text if line.hint is None else f"{line.text} ({line.hint})")


def execute(words: Sequence[str], timeout: Optional[float] = None) -> Outcome:
    """Runs `archfs WORDS` until it exits. Raises TimedOut after `timeout` seconds."""
    program = executable()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        return _executed([program, *words], deadline)
    except OSError as error:
        # An error without errno was raised by a signal handler.
        if isinstance(error, _errors.Error) or error.errno is None:
            raise
        raise _errors.Error(f"{program}: cannot run: {error.strerror}") from error


def _executed(command: Sequence[str], deadline: Optional[float]) -> Outcome:
    terminal = _terminal()
    with _scratch.nameless() as output:
        pair = None if terminal is None else _pseudo_terminal(terminal)
        if pair is None:
            terminal = None
        ours, theirs = pair or os.pipe()
        # Created before the start: a signal handler may raise during the start, and then the child must be
        # ended too.
        process: subprocess.Popen[bytes] = subprocess.Popen.__new__(subprocess.Popen)
        try:
            try:
                _start(process, command, output.fileno(), theirs)
            finally:
                os.close(theirs)
            messages = _listen(process, ours, terminal, deadline)
        except BaseException:
            if getattr(process, "pid", None) is None:
                process.pid = _child_that_writes(output.fileno())
            if process.pid:
                _end(process)
            raise
        finally:
            os.close(ours)
        output.seek(0)
        written = output.read()
    return Outcome(process.wait(), written, _lines(messages))


def _start(process: subprocess.Popen[bytes], command: Sequence[str], output: int, error_output: int) -> None:
    try:
        subprocess.Popen.__init__(process, command, stdin=subprocess.DEVNULL, stdout=output, stderr=error_output)
    except OSError as error:
        if error.errno is None or error.errno in _SHORT_OF:
            raise
        raise _errors.ExecutableNotFound(f"{command[0]}: {error.strerror}") from error


def _child_that_writes(output: int) -> int:
    """Finds our child with this file as standard output, or 0. It is needed if an interrupt arrives after the
    child has started and before Popen has stored its pid.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return 0
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid() and os.path.samestat(os.stat(f"/proc/{name}/fd/1"), os.fstat(output)):
                return int(name)
        except OSError:  # It has exited.
            pass
    return 0


def _listen(
    process: subprocess.Popen[bytes], ours: int, terminal: Optional[int], deadline: Optional[float]
) -> bytes:
    """Reads messages until the child exits. Other processes may hold its end of `ours`, such as a child that
    another thread forked at that moment. They must not keep this function waiting.
    """
    messages = b""
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    has_ended, is_open = False, True
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0 and not has_ended:
            raise _errors.TimedOut("archfs: timed out", "pass a larger timeout=", 6)
        wait = 0 if has_ended else _LOOK if left is None else min(left, _LOOK)
        if not is_open:
            if has_ended or _ends_within(process, wait):
                return messages
        elif poll.poll(wait * 1000):
            try:
                part = os.read(ours, 65536)
            except OSError:  # All ends of a pseudo terminal are closed.
                part = b""
            messages += part
            if terminal is not None:
                _show(_COLOR.sub(b"", part), terminal)
            is_open = part != b""
        elif has_ended:
            return messages
        else:
            has_ended = process.poll() is not None


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    if not _ends_within(process, _END):
        process.kill()
        process.wait()


def _terminal() -> Optional[int]:
    """The descriptor of standard error if it is a terminal. In a notebook it is not, whatever descriptor 2
    is.
    """
    try:
        if sys.stderr is not None and sys.stderr.isatty():
            return sys.stderr.fileno()
    except (OSError, ValueError):
        pass
    return None


def _pseudo_terminal(like: int) -> Optional[tuple[int, int]]:
    """A pair of descriptors, or None if there is no pseudo terminal; then no bars are shown."""
    try:
        ours, theirs = os.openpty()
    except OSError:
        return None
    try:
        tty.setraw(theirs)
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    except (OSError, termios.error):  # Bars are drawn for 80 columns.
        pass
    return ours, theirs


def _show(part: bytes, terminal: int) -> None:
    """Passes on what draws and clears a bar. Complete lines go to the exception or the logger."""
    end = part.rfind(b"\n") + 1
    drawn = b"".join(_drawing(line) for line in part[:end].split(b"\n"))
    rest = part[end:]
    if b"\r" in rest or b"\x1b" in rest:
        drawn += rest
    try:
        os.write(terminal, drawn)
    except OSError:
        pass


def _drawing(line: bytes) -> bytes:
    found = _DRAWN.match(line)
    return found.group() if found else b""


def _lines(messages: bytes) -> list[Line]:
    """The messages, each with the hint on the line below."""
    lines: list[Line] = []
    for raw in _COLOR.sub(b"", messages).split(b"\n")[:-1]:
        text = _DRAWN.sub(b"", raw, count=1).decode(errors="replace").rstrip()
        message = _MESSAGE.fullmatch(text)
        if message and message[1] == "hint":
            if lines:
                lines[-1] = lines[-1]._replace(hint=message[2])
        elif message:
            lines.append(Line(message[2], None, _LEVELS[message[1]]))
        elif text:
            lines.append(Line(text, None, logging.WARNING))
    return lines


def _texts(lines: Sequence[Line]) -> tuple[str, ...]:
    return tuple(line.text for line in lines)
