"""Runs the tests of the Python package: python tests/python/package [NAME...]. See scripts/test-package.

Prints `ok      package: what` or `FAILED  package: what` for each test, and failures on stderr. Given names, runs
only tests whose names contain one of them. Exit status 1 if a test fails or none is found.
"""

import signal
import sys
import traceback
import unittest
from pathlib import Path


class Lines(unittest.TestResult):
    """Prints a line when a test ends."""

    def addSuccess(self, test):
        print(f"ok      package: {name(test)}", flush=True)

    def addSkip(self, test, reason):
        print(f"package: SKIPPED {name(test)}: {reason}", file=sys.stderr, flush=True)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.failed(test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.failed(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.failed(subtest, "".join(traceback.format_exception(*error)))

    def failed(self, test, why):
        print(f"FAILED  package: {name(test)}", flush=True)
        print(why, file=sys.stderr, flush=True)


def name(test):
    return test.id().split(".", 1)[-1]


def all_tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        else:
            yield test


def main():
    # A shell starts background jobs with it ignored, and every process of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    found = all_tests(unittest.defaultTestLoader.discover(str(here), top_level_dir=str(here)))
    words = sys.argv[1:]
    chosen = [test for test in found if not words or any(word in test.id() for word in words)]
    result = Lines()
    unittest.TestSuite(chosen).run(result)
    if not chosen:
        print("package: no such test", file=sys.stderr)
    return 0 if chosen and result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
