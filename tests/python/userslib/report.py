"""One line per check, in the format that scripts/test counts, followed by the problem."""

import contextlib
import difflib
import subprocess


class Problem(Exception):
    """A problem, described for the user."""


# Errors of a failed check. All others are faults of the script.
FAILURES = (Problem, OSError, subprocess.SubprocessError)


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    @contextlib.contextmanager
    def check(self, what):
        """Prints `ok` unless the block raises. Continues after a failure, because later checks give more
        information.
        """
        try:
            yield
        except FAILURES as problem:
            self._fail(what, problem)
        else:
            self.passed += 1
            print(f"ok      python: {what}", flush=True)

    @contextlib.contextmanager
    def section(self, name):
        """Prints a line only if something outside the checks fails."""
        try:
            yield
        except FAILURES as problem:
            self._fail(name, problem)

    def _fail(self, what, problem):
        self.failed += 1
        print(f"FAILED  python: {what}", *shown(problem), sep="\n", flush=True)

    @staticmethod
    def note(text):
        print(f"note    python: {text}", flush=True)


def shown(problem):
    said = [str(problem)]
    for stream in [getattr(problem, "stdout", None), getattr(problem, "stderr", None)]:
        if stream:
            said.append(stream if isinstance(stream, str) else stream.decode(errors="replace"))
    return ["        " + line for text in said for line in text.splitlines()[-40:]]


def same(expected, found):
    """Raises with the lines that differ."""
    if not expected.strip():
        raise Problem("the plain directory gave nothing to compare with")
    if expected != found:
        lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), "plain directory", "mount", n=0,
                                     lineterm="")
        raise Problem("\n".join(list(lines)[:40]))
