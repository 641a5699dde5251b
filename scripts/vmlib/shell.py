"""Commands that must succeed."""

import shlex
import subprocess
import sys


def fail(text):
    """Ends the script."""
    sys.exit(f"vm: {text}")


def call(*words, cwd=None):
    """Runs a command; returns its output."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout
