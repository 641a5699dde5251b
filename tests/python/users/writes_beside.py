"""Writes beside the data that it reads, with the standard library, as training code does: caches, databases, compiled
modules. Prints what it reads back, and all files at the end.

Usage: writes_beside.py DIRECTORY
"""

import fcntl
import hashlib
import json
import mmap
import os
import pathlib
import pickle
import shelve
import shutil
import sqlite3
import sys
import tempfile


def labels_cache(root):
    """A cache that is written under another name and renamed, as YOLO and many others do."""
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.glob("samples/*/*.bin"))}
    with tempfile.NamedTemporaryFile(dir=root, prefix="labels", delete=False) as file:
        pickle.dump(sizes, file)
        os.fsync(file.fileno())
    os.replace(file.name, root / "labels.cache")
    return len(pickle.loads((root / "labels.cache").read_bytes())), sum(sizes.values())


def databases(root):
    """A database of the archive is changed, in both journal modes; the changes are there when it is opened again."""
    found = []
    for name in ["table.db", "wal.db"]:
        for _ in range(2):
            with sqlite3.connect(root / "files" / name) as base:
                base.execute("delete from number where id % 2 = 0")
                base.execute("insert into number (value, name) values (1.5, 'new')")
                found.append(base.execute("select count(*), sum(value), max(name) from number").fetchone())
            base.close()
    return found


def compiled_modules(root):
    shutil.rmtree(root / "site" / "greeting" / "__pycache__", ignore_errors=True)
    sys.path.insert(0, str(root / "site"))
    sys.dont_write_bytecode = False
    import greeting
    return greeting.WORDS, sorted(path.name for path in (root / "site").rglob("*.pyc"))


def key_value_store(root):
    with shelve.open(str(root / "samples" / "store")) as store:
        store.update({str(number): [number] * number for number in range(50)})
    with shelve.open(str(root / "samples" / "store")) as store:
        return sum(len(value) for value in store.values())


def mapped_in_place(root):
    with open(root / "files" / "random.bin", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[1_000_000:1_000_004] = b"HERE"
    return hashlib.sha256((root / "files" / "random.bin").read_bytes()).hexdigest()


def replaced_directory(root):
    shutil.copytree(root / "samples" / "class 0", root / "samples" / "class 9", symlinks=True)
    shutil.rmtree(root / "samples" / "class 0")
    (root / "samples" / "class 0").mkdir()
    return os.listdir(root / "samples" / "class 0"), len(os.listdir(root / "samples" / "class 9"))


def tree(root):
    """All files but what depends on the time: the bytes of databases and of compiled modules."""
    for path in sorted(root.rglob("*")):
        kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
        is_timed = path.suffix in {".db", ".pyc", ".dat", ".bak", ".dir"} or path.name == "store"
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" and not is_timed else ""
        yield str(path.relative_to(root)), kind, digest


def main():
    root = pathlib.Path(sys.argv[1])
    for work in [labels_cache, databases, compiled_modules, key_value_store, mapped_in_place, replaced_directory]:
        print(work.__name__, json.dumps(work(root)))
    for line in tree(root):
        print(*line)


if __name__ == "__main__":
    main()
