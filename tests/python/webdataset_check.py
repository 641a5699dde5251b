"""Reads shards with the webdataset package and compares them with their source directory.

Each sample must appear once, with all its files and nothing else. With --labels its .cls must be the number of its
top directory. Prints the number of samples and a checksum of their order. Exit status 1 if something differs, 77 if
the package is missing.

Usage: webdataset_check.py DIRECTORY OUT.tar [--labels] [--bytes N]
"""

import argparse
import glob
import hashlib
import os
import sys

try:
    import webdataset
except ImportError:
    print("webdataset is not installed", file=sys.stderr)
    sys.exit(77)


def expected_samples(root):
    """Keys and the bytes of each extension, grouped without webdataset."""
    samples = {}
    for directory, _, names in os.walk(root):
        below = os.path.relpath(directory, root)
        for name in names:
            path = os.path.join(directory, name)
            key, dot, extension = name.partition(".")
            if not dot or not key or os.path.islink(path) or not os.path.isfile(path):
                continue
            key = key if below == "." else below + "/" + key
            with open(path, "rb") as file:
                samples.setdefault(key, {})[extension.lower()] = file.read()
    return samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("out")
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--bytes", type=int)
    options = parser.parse_args()
    stem = options.out.removesuffix(".tar")
    shards = sorted(glob.glob(glob.escape(stem) + "-[0-9]*.tar"))
    expected = expected_samples(options.directory)
    classes = sorted(os.fsencode(entry.name) for entry in os.scandir(options.directory) if entry.is_dir())
    wrong = []
    if options.labels:
        with open(stem + "-classes.txt", "rb") as file:
            if file.read() != b"".join(name + b"\n" for name in classes):
                wrong.append("the names of classes differ")
        for key, sample in expected.items():
            sample["cls"] = str(classes.index(os.fsencode(key.split("/")[0]))).encode()
    order, seen = hashlib.sha256(), set()
    for shard in shards:
        here = 0
        for sample in webdataset.WebDataset(shard, shardshuffle=False, empty_check=False):
            key = sample["__key__"]
            found = {name: data for name, data in sample.items() if not name.startswith("__")}
            if key in seen:
                wrong.append(f"{key}: there twice")
            elif found != expected.get(key):
                wrong.append(f"{key}: differs: {sorted(found)}, not {sorted(expected.get(key, {}))}")
            seen.add(key)
            order.update(os.fsencode(key) + b"\n")
            here += 1
        if options.bytes and os.path.getsize(shard) > options.bytes and here > 1:
            wrong.append(f"{shard}: {os.path.getsize(shard)} bytes, and {here} samples")
    wrong += [f"{key}: missing" for key in sorted(expected.keys() - seen)]
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    print(f"{len(shards)} shards, {len(seen)} samples, order {order.hexdigest()[:16]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
