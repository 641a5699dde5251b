"""Virtual environments with the packages that users' code needs, created once and kept in target/.

torch from PyPI includes GPU libraries, so it has 5 GB. uv unpacks them with a fifth of the CPU time of pip.
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
UV = "uv==0.13.9"


class Missing(Exception):
    """The packages are not available here."""


def torch(is_short):
    """The interpreter with torch, and in the long form other packages that read files; ARCHFS_TEST_VENV names an
    existing environment.
    """
    given = os.environ.get("ARCHFS_TEST_VENV")
    if given:
        return pathlib.Path(given).resolve() / "bin" / "python"
    if is_short:
        return python("python-torch", "torch.txt")
    return python("python-users", "torch.txt", "more.txt")


def tensorflow():
    """The interpreter with tensorflow."""
    return python("python-tensorflow", "tensorflow.txt")


def python(name, *lists):
    """The interpreter of the environment `name`, with the packages of these lists in tests/python/users."""
    wanted = [USERS / each for each in lists]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    directory = target / name
    mark = directory / "made-of"
    of = hashlib.sha256(b"".join(each.read_bytes() for each in wanted)).hexdigest()
    if not mark.exists() or mark.read_text() != of:
        print(f"test-python: packages are installed in {directory}", file=sys.stderr, flush=True)
        try:
            make(directory, wanted)
        except (OSError, subprocess.SubprocessError) as problem:
            shutil.rmtree(directory, ignore_errors=True)
            raise Missing(str(problem)) from problem
        mark.write_text(of)
    return directory / "bin" / "python"


def make(directory, lists):
    run(sys.executable, "-m", "venv", "--clear", directory)
    interpreter = directory / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    # A mirror that pip was told to use. A cache would keep a second copy of the downloads.
    index = ["--default-index", os.environ["PIP_INDEX_URL"]] if "PIP_INDEX_URL" in os.environ else []
    wanted = [word for each in lists for word in ("--requirement", each)]
    run(interpreter, "-m", "uv", "pip", "install", "--python", interpreter, "--quiet", "--no-cache", "--only-binary", ":all:",
        *index, *wanted)


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
