"""Reads LMDB databases that are a directory and a file, with and without lock, in one process and in several.

Usage: lmdb_file.py DIRECTORY
"""

import hashlib
import multiprocessing
import random
import sys

import lmdb


def opened(root, subdir, lock):
    return lmdb.open(f"{root}/{'directory' if subdir else 'file'}.lmdb", readonly=True, lock=lock, subdir=subdir,
                     readahead=False, max_readers=16)


def values(root, keys):
    with opened(root, False, False) as base, base.begin(buffers=True) as look:
        return hashlib.sha256(b"".join(bytes(look.get(b"%08d" % key)) for key in keys)).hexdigest()


def main():
    root = sys.argv[1]
    for subdir in [True, False]:
        for lock in [False, True]:
            with opened(root, subdir, lock) as base, base.begin() as look:
                digest = hashlib.sha256()
                for key, value in look.cursor():
                    digest.update(key + value)
                print(f"folder {subdir}, lock {lock}:", base.stat()["entries"], digest.hexdigest())
    choose = random.Random(1)
    wanted = [(root, choose.sample(range(2000), 100)) for _ in range(30)]
    for start in ["fork", "spawn"]:
        with multiprocessing.get_context(start).Pool(3) as pool:
            print(start, hashlib.sha256("".join(pool.starmap(values, wanted)).encode()).hexdigest())


if __name__ == "__main__":
    main()
