#!/usr/bin/env python3
"""One epoch as Python's loaders read it: open, read and close every file, in shuffled order.

Usage: epoch.py ROOT LIST PROCESSES SEED

ROOT is a directory, or archfs://::ARCHIVE for the file system of this package. LIST holds paths
below ROOT, one per line. Prints files, bytes, seconds and a checksum like examples/epoch;
the time runs from when all processes are ready until the last one is done. The checksum covers sizes and the
first and last bytes: if Python looked at every byte, that would dominate the measurement.
"""

import os
import random
import sys
import time


def reading(root):
    """A function that returns the contents of a file below `root`."""
    if root.startswith("archfs://"):
        import fsspec
        fsspec.register_implementation("archfs", "archfs.filesystem.ArchiveFileSystem")
        return fsspec.url_to_fs(root)[0].cat_file

    def read(file):
        with open(f"{root}/{file}", "rb") as stream:
            return stream.read()
    return read


def worker(root, files, ready, go):
    read = reading(root)
    os.write(ready, b"r")
    os.read(go, 1)
    count = size = checksum = 0
    for number, file in files:
        data = read(file)
        count += 1
        size += len(data)
        checksum += (len(data) + sum(data[:8]) + sum(data[-8:])) * (2 * number + 1)
    return f"{count} {size} {checksum}"


def main(root, listing, processes, seed):
    with open(listing, encoding="utf-8", errors="surrogateescape") as stream:
        files = list(enumerate(stream.read().splitlines()))
    random.Random(int(seed)).shuffle(files)
    processes = int(processes)
    ready, is_ready = os.pipe()
    go, start_all = os.pipe()
    outputs = []
    for nth in range(processes):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, worker(root, files[nth::processes], is_ready, go).encode())
            os._exit(0)
        os.close(writer)
        outputs.append(reader)
    for _ in range(processes):
        os.read(ready, 1)
    start = time.perf_counter()
    os.write(start_all, b"g" * processes)
    totals = [[int(word) for word in os.read(output, 200).split()] for output in outputs]
    seconds = time.perf_counter() - start
    for _ in range(processes):
        if os.wait()[1]:
            sys.exit("epoch.py: a reader failed")
    count, size, checksum = (sum(column) for column in zip(*totals))
    print(count, size, seconds, f"{checksum % 2**64:016x}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
