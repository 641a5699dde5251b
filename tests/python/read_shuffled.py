"""Reads files of a tree with many processes, each in its own order, and compares checksums.

read_shuffled.py ROOT LIST PROCESSES, where each line of LIST is a CRC-32 and a path in hex. Prints the number of
files that each process read; exit status 1 if a checksum differs.
"""

import os
import random
import sys
import zlib


def read(root, files, seed):
    random.Random(seed).shuffle(files)
    bad = 0
    for checksum, path in files:
        total = 0
        with open(os.path.join(root, path), "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 17):
                total = zlib.crc32(chunk, total)
        if total != checksum:
            print(f"process {seed}: {path!r} differs", file=sys.stderr)
            bad += 1
    return bad


def main(root, listed, processes):
    with open(listed) as lines:
        rows = [line.split() for line in lines]
    files = [(int(checksum), bytes.fromhex(path)) for checksum, path in rows]
    children = []
    for seed in range(int(processes)):
        child = os.fork()
        if child == 0:
            os._exit(1 if read(os.fsencode(root), files, seed) else 0)
        children.append(child)
    results = [os.waitpid(child, 0)[1] for child in children]
    print(len(files))
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
