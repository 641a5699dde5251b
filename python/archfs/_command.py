"""Runs the program archfs, and makes exceptions of what it says.

Owns the child process: it has ended when a function here returns, also by an exception. What archfs says is
kept for the exception, or goes to the logger "archfs". Its progress bars are shown where standard error is a
terminal; for that it gets a pseudo terminal, whose bytes are passed on but for whole lines.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Sequence
from typing import NamedTuple, Optional

from . import _errors
from ._executable import executable
from ._options import PathLike, path

LOGGER = logging.getLogger("archfs")

# Seconds that a child which was asked to end may take, and between two looks whether it has ended.
_END = 10.0
_LOOK = 0.1

# What a bar puts before a line: it returns to the first column, and clears what is there.
_DRAWN = re.compile(rb".*(?:\r|\x1b\[[0-9;?]*[A-Za-z])", re.DOTALL)

# What is said of a mount where all is as it should be.
_ORDINARY = re.compile(
    r"(mounted|sharing) .* until |started inside an srun step|"
    r".*: (Slurm kills the daemon|still held by process|stays mounted)"
)


class Line(NamedTuple):
    """Something archfs said, without its name in front."""

    text: str
    hint: Optional[str]


class Outcome(NamedTuple):
    """How a run ended."""

    status: int
    output: str
    lines: list[Line]


def run(
    words: Sequence[str], *, needs: Sequence[PathLike] = (), timeout: Optional[float] = None
) -> Outcome:
    """Runs `archfs WORDS`. Raises an Error where it fails; a MissingFile where one of `needs` is not there."""
    outcome = execute(words, timeout)
    if outcome.status != 0:
        raise failure(outcome, needs)
    log(outcome.lines)
    return outcome


def failure(outcome: Outcome, needs: Sequence[PathLike] = ()) -> _errors.Error:
    """The exception for a run that failed."""
    status = outcome.status
    if status < 0:
        return _errors.Error(f"signal {-status} ended archfs", None, 128 - status, _texts(outcome.lines))
    if not outcome.lines:
        return _errors.of_status(status, f"archfs ended with status {status}", None, ())
    last = outcome.lines[-1]
    error = _errors.of_status(status, last.text, last.hint, _texts(outcome.lines[:-1]))
    if status == 1:
        for need in needs:
            if not os.path.lexists(path(need)):
                return _errors.missing(error, path(need))
    return error


def log(lines: Sequence[Line]) -> None:
    """Tells the logger what archfs said though it did not fail."""
    for line in lines:
        level = logging.INFO if _ORDINARY.match(line.text) else logging.WARNING
        LOGGER.log(level, "%s", line.text if line.hint is None else f"{line.text} ({line.hint})")


def execute(words: Sequence[str], timeout: Optional[float] = None) -> Outcome:
    """Runs `archfs WORDS` to its end. Raises TimedOut when that takes more than `timeout` seconds."""
    program = executable()
    deadline = None if timeout is None else time.monotonic() + timeout
    terminal = _terminal()
    with tempfile.TemporaryFile() as output:
        ours, theirs = os.pipe() if terminal is None else _pseudo_terminal(terminal)
        try:
            try:
                process = subprocess.Popen(
                    [program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=theirs
                )
            except OSError as error:
                raise _errors.ExecutableNotFound(f"{program}: {error.strerror}") from error
            finally:
                os.close(theirs)
            try:
                said = _listen(process, ours, terminal, deadline)
            except BaseException:
                _end(process)
                raise
        finally:
            os.close(ours)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Outcome(process.wait(), text, _lines(said))


def _listen(
    process: subprocess.Popen[bytes], ours: int, terminal: Optional[int], deadline: Optional[float]
) -> bytes:
    """What the child says until it ends. Other processes that have its end of `ours` do not matter: a
    child that another thread forks at the wrong moment would keep this one waiting for ever."""
    said = b""
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    has_ended = False
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0 and not has_ended:
            raise _errors.TimedOut("archfs: it took too long", "allow more by timeout=", 6)
        wait = 0 if has_ended else _LOOK if left is None else min(left, _LOOK)
        if poll.poll(wait * 1000):
            try:
                part = os.read(ours, 65536)
            except OSError:  # All have closed their end of a pseudo terminal.
                part = b""
            said += part
            if terminal is not None:
                _show(part, terminal)
            if part:
                continue
            poll.unregister(ours)
        elif has_ended:
            return said
        has_ended = process.poll() is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _terminal() -> Optional[int]:
    """The descriptor of standard error where that is a terminal. In a notebook it is not, whatever
    descriptor 2 may be."""
    try:
        if sys.stderr is not None and sys.stderr.isatty():
            return sys.stderr.fileno()
    except (OSError, ValueError):
        pass
    return None


def _pseudo_terminal(like: int) -> tuple[int, int]:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    try:
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    except OSError:  # It draws for 80 columns then.
        pass
    return ours, theirs


def _show(part: bytes, terminal: int) -> None:
    """Passes on what draws and clears a bar. Lines are for the exception or the logger."""
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


def _lines(said: bytes) -> list[Line]:
    """The lines of `archfs: what` with the `hint: what to do` below them."""
    lines: list[Line] = []
    for raw in said.split(b"\n")[:-1]:
        text = _DRAWN.sub(b"", raw, count=1).decode(errors="replace").rstrip()
        if text.startswith("hint: ") and lines:
            lines[-1] = Line(lines[-1].text, text[len("hint: ") :])
        elif text:
            lines.append(Line(text[len("archfs: ") :] if text.startswith("archfs: ") else text, None))
    return lines


def _texts(lines: Sequence[Line]) -> tuple[str, ...]:
    return tuple(line.text for line in lines)
