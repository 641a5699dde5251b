"""Commands that must succeed."""

import contextlib
import shlex
import shutil
import subprocess
import sys

# The exit status of tests that cannot run on this machine.
CANNOT_RUN = 77


def fail(text, status=1):
    """Ends the script."""
    print(f"vm: {text}", file=sys.stderr)
    sys.exit(status)


@contextlib.contextmanager
def made(path):
    """A new directory to fill, which is renamed to `path` at the end, so that an incomplete one is never used."""
    making = path.with_name(f"{path.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    yield making
    making.rename(path)


def call(*words, cwd=None):
    """Runs a command; returns its output."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout
