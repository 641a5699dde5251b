"""Virtual environments of the packages that users' code needs, made once and kept in target/.

torch of PyPI brings what graphics cards need, so it has 5 GB, and takes some minutes to come.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from userslib.stage import ROOT, USERS

# Seconds. A whole install takes about two minutes; a registry that hangs is given up.
LIMIT = 1500


class Missing(Exception):
    """Packages that can not be had here."""


def torch():
    """The interpreter that has torch and most others; ARCHFS_TEST_VENV names an environment that is there already."""
    given = os.environ.get("ARCHFS_TEST_VENV")
    if given:
        return pathlib.Path(given).resolve() / "bin" / "python"
    return python("python-users", USERS / "torch.txt")


def tensorflow():
    """The interpreter that has tensorflow."""
    return python("python-tensorflow", USERS / "tensorflow.txt")


def python(name, wanted):
    """The interpreter of the environment `name`, which has the packages that the file `wanted` lists."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    place = target / name
    mark = place / "made-of"
    of = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != of:
        print(f"test-python: packages are installed in {place}", file=sys.stderr, flush=True)
        try:
            make(place, wanted)
        except (OSError, subprocess.SubprocessError) as problem:
            shutil.rmtree(place, ignore_errors=True)
            raise Missing(str(problem)) from problem
        mark.write_text(of)
    return place / "bin" / "python"


def make(place, packages):
    run(sys.executable, "-m", "venv", "--clear", place)
    # What is fetched is not kept twice.
    run(place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-cache-dir", "--only-binary", ":all:", "--requirement", packages)


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
