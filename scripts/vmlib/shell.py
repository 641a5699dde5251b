"""Commands that must succeed."""

import contextlib
import pathlib
import shlex
import subprocess
import sys
import tempfile

# The exit status of tests that cannot run on this machine.
CANNOT_RUN = 77


def fail(text, status=1):
    """Ends the script."""
    print(f"vm: {text}", file=sys.stderr)
    sys.exit(status)


@contextlib.contextmanager
def made(path):
    """A new directory to fill, which is renamed to `path` at the end, so that an incomplete one is never used."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.making-", dir=path.parent) as directory:
        making = pathlib.Path(directory) / "new"
        making.mkdir(mode=0o755)
        yield making
        # Another run may have made it at the same time.
        with contextlib.suppress(FileExistsError):
            making.rename(path)


def call(*words, cwd=None, status=1):
    """Runs a command; returns its output. If it fails, the script ends with `status`."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{shlex.join(words)}: {done.stderr.strip()}", status)
    return done.stdout
