"""The Python that has torch and the other packages of the loaders."""

import pathlib
import shutil
import subprocess
import sys

from benchlib import programs

PACKAGES = ["torch", "torchvision", "webdataset", "h5py", "lmdb", "pillow", "numpy"]
REQUIREMENTS = pathlib.Path(__file__).parent


def python_with_torch(given, work):
    """The path of a Python with torch; a virtual environment is created at most once."""
    python = given or work / "environment" / "bin" / "python"
    complete = python.parent / "complete"
    if not given and not complete.exists():
        make_environment(python)
        complete.touch()
    names = ["PIL" if one == "pillow" else one for one in PACKAGES]
    programs.call(python, "-c", f"import {', '.join(names)}")
    # Not resolved, because Python recognizes a virtual environment by the path of its link.
    return python.absolute()


def make_environment(python):
    """Uses a system Python that has torch, or installs torch from PyPI."""
    base = [one for one in [sys.executable, "/usr/bin/python3"] if has_torch(one)]
    files = [REQUIREMENTS / "requirements.txt"] + [REQUIREMENTS / "requirements-torch.txt"] * (not base)
    print(f"installing {', '.join(file.name for file in files)}", flush=True)
    programs.call(*(base or [sys.executable])[:1], "-m", "venv", "--clear", "--system-site-packages",
                  python.parents[1])
    programs.call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                  *(word for file in files for word in ["-r", file]))


def has_torch(python):
    command = [python, "-c", "import torch, torchvision"]
    return shutil.which(python) and not subprocess.run(command, check=False, capture_output=True).returncode


def versions(python):
    """Versions of Python and all packages, according to that Python."""
    asked = ("import platform, importlib.metadata as m; print('Python', platform.python_version(), end=', ');"
             f"print(', '.join(n + ' ' + m.version(n) for n in {PACKAGES}))")
    return programs.output(python, "-c", asked).strip()
