"""Running other programs: their output, their versions, and the programs that the benchmark builds."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]


def call(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def output(*command):
    """Standard output and standard error of a command, whatever its status; empty if there is no such
    command.
    """
    try:
        return subprocess.run([str(word) for word in command], check=False, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT).stdout
    except OSError:
        return ""


def version(*command):
    """The first text in a command's output that looks like a version."""
    found = re.search(r"\d+\.\d+[.\w-]*", output(*command))
    return found[0] if found else "unknown"


def build():
    """Builds archfs, unless ARCHFS names a program, and the reader; returns their paths."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    epoch = target / "examples" / "epoch"
    given = os.environ.get("ARCHFS")
    if given:
        # The reader needs no crate, not even archfs.
        epoch.parent.mkdir(parents=True, exist_ok=True)
        call("rustc", "--edition", "2024", "-O", "-o", epoch, ROOT / "examples/epoch.rs", cwd=ROOT)
        return pathlib.Path(given).resolve(), epoch
    for what in [[], ["--example", "epoch"]]:
        call("cargo", "build", "--quiet", "--release", "--locked", *what, cwd=ROOT)
    return target / "archfs", epoch
