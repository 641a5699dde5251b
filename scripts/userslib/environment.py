"""The virtual environment of tests/python/users/requirements.txt, made once and kept in target/.

torch and torchvision come from the index that has them without what only graphics cards need. Where that
can not be reached, those of the distribution are taken if they are installed (Debian: python3-torch and
python3-torchvision). What PyPI has takes 5 GB, which is too much for a test.
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
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SYSTEM = "/usr/bin/python3"


class Missing(Exception):
    """Packages that can not be had here."""


def python():
    """The interpreter of the environment; ARCHFS_TEST_VENV names one that is there already."""
    given = os.environ.get("ARCHFS_TEST_VENV")
    if given:
        return pathlib.Path(given).resolve() / "bin" / "python"
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    place = target / "python-users"
    wanted = [USERS / "requirements.txt", USERS / "requirements-torch.txt"]
    mark = place / "made-of"
    of = hashlib.sha256(b"".join(file.read_bytes() for file in wanted)).hexdigest()
    if not mark.exists() or mark.read_text() != of:
        print(f"test-python: packages are installed in {place}", file=sys.stderr, flush=True)
        try:
            make(place, *wanted)
        except (OSError, subprocess.SubprocessError) as problem:
            shutil.rmtree(place, ignore_errors=True)
            raise Missing(str(problem)) from problem
        mark.write_text(of)
    return place / "bin" / "python"


def make(place, packages, torch):
    run(sys.executable, "-m", "venv", "--clear", place)
    if not with_torch(place, torch):
        if not succeeds(SYSTEM, "-c", "import torch, torchvision"):
            raise OSError("no torch without CUDA: neither from its index nor from the distribution")
        run(SYSTEM, "-m", "venv", "--clear", "--system-site-packages", place)
    run(*pip(place), "--requirement", packages)


def with_torch(place, torch):
    return succeeds(*pip(place), "--retries", "0", "--timeout", "15", "--index-url", CPU_INDEX,
                    "--requirement", torch)


def pip(place):
    return [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--only-binary", ":all:"]


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)


def succeeds(*command):
    return subprocess.run([str(word) for word in command], check=False, timeout=LIMIT, capture_output=True,
                          stdin=subprocess.DEVNULL).returncode == 0
