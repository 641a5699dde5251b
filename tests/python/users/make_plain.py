"""Makes the directory that plain.py reads, using only the standard library: the same bytes every time.

Usage: make_plain.py DIRECTORY
"""

import gzip
import json
import os
import pathlib
import pickle
import py_compile
import random
import sqlite3
import sys
import tarfile
import zipfile

# Whole seconds, which every format stores.
WHEN = 1_700_000_000


def samples(root, rng):
    for number in range(6):
        directory = root / "samples" / f"class {number}"
        directory.mkdir(parents=True)
        for sample in range(40):
            size = rng.choice([0, 1, 100, 4096, 5000, 70_000, 140_000])
            body = rng.randbytes(size) if sample % 2 else (b"line %d\n" % sample * size)[:size]
            (directory / f"{sample:03}.bin").write_bytes(body)
    (root / "samples" / "empty folder").mkdir()
    os.symlink("class 0/003.bin", root / "samples" / "link")
    os.link(root / "samples" / "class 1" / "005.bin", root / "samples" / "hard link")


def package(root):
    """A package with data files and compiled code, as pip installs it."""
    greeting = root / "site" / "greeting"
    (greeting / "data").mkdir(parents=True)
    (greeting / "__init__.py").write_text("from greeting.words import WORDS\n")
    (greeting / "words.py").write_text(
        "import importlib.resources\n"
        "WORDS = importlib.resources.files('greeting').joinpath('data/words.txt').read_text().split()\n")
    (greeting / "__main__.py").write_text("from greeting import WORDS\nprint(WORDS)\n")
    (greeting / "data" / "words.txt").write_text("good morning\n")
    for file in greeting.glob("*.py"):
        os.utime(file, (WHEN, WHEN))
        py_compile.compile(str(file), doraise=True)


def files(root, rng):
    directory = root / "files"
    directory.mkdir()
    text = "".join(f"{number} {rng.random()}\n" for number in range(30_000))
    (directory / "numbers.txt").write_text(text)
    (directory / "numbers.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (directory / "numbers.json").write_text(json.dumps([float(line.split()[1]) for line in text.splitlines()]))
    (directory / "numbers.pickle").write_bytes(pickle.dumps(text.split()))
    (directory / "random.bin").write_bytes(rng.randbytes(3_000_001))
    for kind, name in [(zipfile.ZIP_STORED, "stored.zip"), (zipfile.ZIP_DEFLATED, "deflated.zip")]:
        with zipfile.ZipFile(directory / name, "w", kind) as archive:
            archive.writestr("said.py", "SAID = 'from a zip'\n")
            for number in range(50):
                archive.writestr(f"part/{number}", rng.randbytes(500) * 20)
    with tarfile.open(directory / "inner.tar.xz", "w:xz") as archive:
        archive.add(root / "site" / "greeting", "greeting")
    for name, mode in [("table.db", "delete"), ("wal.db", "wal")]:
        with sqlite3.connect(directory / name) as base:
            base.execute(f"pragma journal_mode = {mode}")
            base.execute("create table number (id integer primary key, value real, name text)")
            base.executemany("insert into number values (?, ?, ?)",
                             ((row, rng.random(), f"name {row % 97}") for row in range(20_000)))
            base.execute("create index by_name on number (name)")
        base.close()


def main():
    root = pathlib.Path(sys.argv[1])
    rng = random.Random(0)
    samples(root, rng)
    package(root)
    files(root, rng)
    for directory, directories, names in os.walk(root, topdown=False):
        for name in directories + names:
            os.utime(os.path.join(directory, name), (WHEN, WHEN), follow_symlinks=False)
    os.utime(root, (WHEN, WHEN))


if __name__ == "__main__":
    main()
