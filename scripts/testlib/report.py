"""The end of the output of scripts/test: what was skipped, what failed, and counts."""

import itertools
import os
import pathlib
import re
import sys

from testlib.schedule import CANNOT_RUN

# The harness of Rust's tests, Python's unittest in other parts, and lines of scripts.
COUNTS = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed")
FAILURE = re.compile(r"^(FAILED  |test .* \.\.\. FAILED)")
# Lines of a failed test that are shown. Its message comes after what it printed.
FIRST_LINES, LAST_LINES = 20, 40


def show(schedule, skips, is_quick):
    """Prints the report and returns the exit status."""
    results = schedule.results.values()
    missing = [part.name for part in schedule.parts if part.name not in schedule.results]
    has_failed = bool(missing) or not all(result.has_passed() for result in results)
    lines = [line for result in results for line in result.output.splitlines()]
    skipped = sorted({*skips.read_text(errors="replace").splitlines(), *unable(results)})
    print("\n".join(skipped))
    if "CI" in os.environ and any(": mounting " in line for line in skipped):
        print("test: CI is set, so no test that mounts may be skipped", file=sys.stderr)
        has_failed = True
    left = [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if "fuse.archfs" in line]
    if left and not is_quick:
        print(f"test: {len(left)} archfs mounts are left on this machine", file=sys.stderr)
        has_failed = True
    lines += [f"FAILED  {name}: it did not run" for name in missing]
    for line in lines:
        if FAILURE.match(line):
            print("\n".join([line, *said(lines, line)]))
    for result in results:
        print(f"{result.elapsed:6.0f} s  CPU {result.cpu:6.0f} s  {result.part.lane.value:5}  {result.part.name}"
              f"{'' if result.has_passed() else f'  FAILED, status {result.status}'}")
    passed, failed = counts(lines)
    # A part that ended early may have printed no failure.
    failed = failed or int(has_failed)
    names = {found[1] for line in skipped if (found := re.match(r"skipped (\S+):", line))}
    print(f"{passed - len(names)} passed, {failed} failed, {len(names)} skipped")
    return 1 if has_failed else 0


def said(lines, failure):
    """What the harness of Rust's tests shows of a failed test: in a long log it stands far from the end."""
    found = re.match(r"test (\S+) \.\.\. FAILED", failure)
    start = f"---- {found[1]} stdout ----" if found else None
    if start not in lines:
        return []
    shown = itertools.takewhile(lambda line: not line.startswith(("---- ", "failures:")), lines[lines.index(start) + 1:])
    shown = list(shown)
    if len(shown) > FIRST_LINES + LAST_LINES:
        shown = [*shown[:FIRST_LINES], "...", *shown[-LAST_LINES:]]
    return [f"    {line}" for line in shown]


def unable(results):
    """A line for each part that cannot run on this machine."""
    for result in results:
        if result.status == CANNOT_RUN:
            yield f"skipped scripts/test: {result.part.lack or result.part.name}"


def counts(lines):
    """How many tests passed, and failed. The harness counts a skipped test as passed."""
    passed = failed = 0
    for line in lines:
        if found := COUNTS.match(line):
            passed, failed = passed + int(found[1]), failed + int(found[2])
        elif line.startswith("ok      "):
            passed += 1
        elif line.startswith("FAILED  "):
            failed += 1
    return passed, failed
