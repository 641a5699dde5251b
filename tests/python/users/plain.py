"""Reads a directory in the ways of the standard library. Prints a line for each: its name and the result.

Usage: plain.py DIRECTORY SCRATCH [NAME...]
"""

import concurrent.futures
import filecmp
import glob
import gzip
import hashlib
import importlib
import json
import mmap
import multiprocessing
import os
import pathlib
import pickle
import random
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile


def digest(*parts):
    total = hashlib.sha256()
    for part in parts:
        total.update(part if isinstance(part, bytes) else repr(part).encode())
        total.update(b"\n")
    return total.hexdigest()[:16]


def of_file(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def every_file(root):
    return sorted(path for path in glob.glob(f"{root}/**", recursive=True) if os.path.isfile(path))


def walked(root):
    seen = []
    for directory, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(directories + names):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            size = 0 if os.path.isdir(path) else status.st_size
            link = os.readlink(path) if os.path.islink(path) else ""
            seen.append((os.path.relpath(path, root), status.st_mode, size, status.st_mtime, link))
    return len(seen), digest(*seen)


def scanned(root):
    entries = os.scandir(root / "samples")
    return digest(*sorted((entry.name, entry.is_dir(), entry.is_symlink(),
                           entry.is_file(follow_symlinks=False)) for entry in entries))


def globbed(root):
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.bin"))
    deep = sorted(os.path.relpath(path, root) for path in glob.glob(f"{root}/**/00?.*", recursive=True))
    return len(found), len(deep), digest(*found, *deep)


def hard_links(root):
    names = [root / "samples" / "hard link", root / "samples" / "class 1" / "005.bin"]
    return os.path.samefile(*names), [name.stat().st_nlink for name in names]


def read_whole(root):
    return digest(*map(of_file, every_file(root)))


def read_at_random(root):
    choose, seen = random.Random(1), []
    with open(root / "files" / "random.bin", "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for _ in range(500):
            seen.append(os.pread(file.fileno(), choose.randrange(20_000), choose.randrange(size)))
    return digest(*seen)


def mapped(root):
    choose = random.Random(2)
    with open(root / "files" / "random.bin", "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            offsets = [choose.randrange(len(pages)) for _ in range(500)]
            parts = [pages[offset:offset + 5000] for offset in offsets]
            return len(pages), pages.find(pages[-40:]), digest(*parts)


def mapped_private(root):
    """Changed in memory, not in the file."""
    with open(root / "files" / "random.bin", "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
            pages[5:9] = b"mine"
            return pages[:20].hex(), digest(of_file(file.name))


def text(root):
    with open(root / "files" / "numbers.txt", encoding="utf-8") as file:
        total = sum(float(line.split()[1]) for line in file)
    with gzip.open(root / "files" / "numbers.txt.gz", "rt") as file:
        same = total == sum(float(line.split()[1]) for line in file)
    return total, same


def unpickled(root):
    with open(root / "files" / "numbers.pickle", "rb") as file:
        words = pickle.load(file)
    with open(root / "files" / "numbers.json", "rb") as file:
        return digest(*words), sum(json.load(file))


def zips(root):
    parts = []
    for name in ["stored.zip", "deflated.zip"]:
        with zipfile.ZipFile(root / "files" / name) as archive:
            parts += [archive.testzip(), *archive.namelist(), *map(archive.read, archive.namelist())]
    return len(parts), digest(*parts)


def tars(root):
    with tarfile.open(root / "files" / "inner.tar.xz") as archive:
        members = archive.getmembers()
        return len(members), digest(*((member.name, member.mode, archive.extractfile(member).read()
                                       if member.isfile() else b"") for member in members))


def database(root, query):
    base = sqlite3.connect(f"file:{root}/files/{query}", uri=True)
    try:
        rows = base.execute("select name, count(*), sum(value) from number group by name order by name")
        return digest(*rows, *base.execute("pragma integrity_check"))
    finally:
        base.close()


def imported(root):
    sys.path.insert(0, str(root / "site"))
    try:
        greeting = importlib.import_module("greeting")
    finally:
        sys.path.pop(0)
    return greeting.WORDS, os.path.relpath(greeting.__file__, root)


def imported_of_zip(root):
    sys.path.insert(0, str(root / "files" / "deflated.zip"))
    try:
        return importlib.import_module("said").SAID
    finally:
        sys.path.pop(0)


def compiled_files_are_taken(root):
    """Compiled files are used only if the mtime and size of their sources are preserved."""
    said = subprocess.run([sys.executable, "-v", "-m", "greeting"], check=True, text=True,
                          capture_output=True, cwd=root / "site")
    return said.stdout, sorted(line.replace(str(root), "") for line in said.stderr.splitlines()
                               if "matches" in line and "greeting" in line)


def run_as_a_module(root):
    space = runpy.run_path(str(root / "site" / "greeting" / "words.py"))
    return space["WORDS"]


def processes(root, start):
    context = multiprocessing.get_context(start)
    with context.Pool(4) as pool:
        return digest(*pool.imap(of_file, every_file(root), chunksize=5))


def executors(root):
    files = every_file(root)
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        of_threads = digest(*threads.map(of_file, files))
    with concurrent.futures.ProcessPoolExecutor(2) as workers:
        of_processes = digest(*workers.map(of_file, files, chunksize=20))
    return of_threads, of_processes


def copied(root):
    """copytree preserves modes and times; copyfile uses sendfile."""
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as scratch:
        copy = shutil.copytree(root, pathlib.Path(scratch) / "copy", symlinks=True)
        compared = filecmp.cmpfiles(root, copy, [os.path.relpath(path, root) for path in every_file(root)],
                                    shallow=False)
        return walked(copy), [len(names) for names in compared]


def disk_usage(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


WAYS = {
    "os.walk": walked,
    "os.scandir": scanned,
    "glob and pathlib": globbed,
    "hard links": hard_links,
    "open": read_whole,
    "os.pread": read_at_random,
    "mmap": mapped,
    "mmap, private": mapped_private,
    "text and gzip": text,
    "pickle and json": unpickled,
    "zipfile": zips,
    "tarfile": tars,
    "sqlite3, mode=ro": lambda root: database(root, "table.db?mode=ro"),
    "sqlite3, immutable": lambda root: database(root, "table.db?mode=ro&immutable=1"),
    "sqlite3, WAL, immutable": lambda root: database(root, "wal.db?mode=ro&immutable=1"),
    "import": imported,
    "import of a zip": imported_of_zip,
    "compiled files": compiled_files_are_taken,
    "runpy": run_as_a_module,
    "multiprocessing, fork": lambda root: processes(root, "fork"),
    "multiprocessing, spawn": lambda root: processes(root, "spawn"),
    "concurrent.futures": executors,
    "shutil.copytree": copied,
    "sizes": disk_usage,
}

# An error on a read-only file system, so it runs only on request.
ASKED = {"sqlite3, WAL": lambda root: database(root, "wal.db?mode=ro")}


def main():
    root, failed = pathlib.Path(sys.argv[1]), 0
    for name in sys.argv[3:] or WAYS:
        try:
            said = (WAYS | ASKED)[name](root)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            failed += 1
        print(f"{name}: {said}".replace(str(root), "ROOT"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
