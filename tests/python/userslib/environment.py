"""Virtual environments with the packages that users' code needs, created once and kept in target/.

torch from PyPI includes GPU libraries, so it has 5 GB and takes some minutes to download.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from userslib.stage import ROOT, USERS

# Time limit in seconds. A complete install takes about two minutes; this is for a registry that hangs.
LIMIT = 1500


class Missing(Exception):
    """The packages are not available here."""


def torch():
    """The interpreter with torch and most other packages; ARCHFS_TEST_VENV names an existing environment."""
    given = os.environ.get("ARCHFS_TEST_VENV")
    if given:
        return pathlib.Path(given).resolve() / "bin" / "python"
    return python("python-users", USERS / "torch.txt")


def tensorflow():
    """The interpreter with tensorflow."""
    return python("python-tensorflow", USERS / "tensorflow.txt")


def python(name, wanted):
    """The interpreter of the environment `name`, with the packages listed in the file `wanted`."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    directory = target / name
    mark = directory / "made-of"
    of = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != of:
        print(f"test-python: packages are installed in {directory}", file=sys.stderr, flush=True)
        try:
            make(directory, wanted)
        except (OSError, subprocess.SubprocessError) as problem:
            shutil.rmtree(directory, ignore_errors=True)
            raise Missing(str(problem)) from problem
        mark.write_text(of)
    return directory / "bin" / "python"


def make(directory, packages):
    run(sys.executable, "-m", "venv", "--clear", directory)
    # pip's cache would keep a second copy of the downloads.
    run(directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-cache-dir", "--only-binary", ":all:", "--requirement", packages)


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
