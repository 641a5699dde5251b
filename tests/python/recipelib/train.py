#!/usr/bin/env python3
"""Training code as a file system sees it: several processes read every file of a directory in random order.
It knows nothing of archfs.

Usage: train.py --data DIRECTORY

Prints a digest of all names and bytes. If RECIPES_RECORD names a directory, it writes a file there that
records what was read, from what kind of file system, and by which Python.
"""

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import sys
import uuid


def samples(root):
    for directory, _, files in os.walk(root):
        for file in files:
            yield os.path.join(directory, file)


def load(path):
    with open(path, "rb") as file:
        return path, hashlib.sha256(file.read()).hexdigest()


def digest(root):
    paths = list(samples(root))
    random.shuffle(paths)
    with multiprocessing.Pool(2) as pool:
        read = pool.map(load, paths, chunksize=8)
    lines = sorted(f"{os.path.relpath(path, root)} {each}\n" for path, each in read)
    return len(lines), hashlib.sha256("".join(lines).encode()).hexdigest()


def file_system(mount_point):
    """The type of the file system mounted at a path, according to the kernel; None if nothing is mounted."""
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.split(" ")
            if fields[4] == mount_point:
                found = fields[fields.index("-") + 1]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    data = parser.parse_args().data
    files, of_all = digest(data)
    print(f"{files} files, digest {of_all}")
    if directory := os.environ.get("RECIPES_RECORD"):
        record = {
            "data": data,
            "digest": of_all,
            "data_type": file_system(os.path.realpath(data)),
            "prefix": sys.prefix,
            "prefix_type": file_system(sys.prefix),
            "has_epochs": importlib.util.find_spec("epochs") is not None,
            "rank": os.environ.get("RANK", os.environ.get("SLURM_PROCID")),
            "mpi_rank": os.environ.get("PMIX_RANK"),
            "array_task": os.environ.get("SLURM_ARRAY_TASK_ID"),
        }
        with open(os.path.join(directory, f"{uuid.uuid4()}.json"), "x", encoding="utf-8") as file:
            json.dump(record, file)


if __name__ == "__main__":
    main()
