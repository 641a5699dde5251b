"""A per-file loader like that of training code: directories are classes, workers read files in random order.

It follows torchvision's ImageFolder with a DataLoader (sorted classes, one os.scandir walk, a new shuffle for each
epoch, several worker processes), using only the standard library. Prints what each epoch read, so that two runs can
be compared.

Usage: imagefolder.py DIRECTORY [EPOCHS] [WORKERS]
"""

import hashlib
import multiprocessing
import os
import random
import sys


def find_samples(root):
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for index, name in enumerate(classes):
        for directory, _, files in sorted(os.walk(os.path.join(root, name))):
            samples.extend((os.path.join(directory, file), index) for file in sorted(files))
    return classes, samples


def load(sample):
    path, index = sample
    with open(path, "rb") as file:
        data = file.read()
    return index, len(data), hashlib.md5(data).digest()


def main():
    root = sys.argv[1]
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    classes, samples = find_samples(root)
    with multiprocessing.Pool(workers) as pool:
        for epoch in range(epochs):
            random.Random(epoch).shuffle(samples)
            size = 0
            digest = hashlib.md5()
            for index, length, one in pool.imap(load, samples, chunksize=16):
                size += length
                digest.update(bytes([index % 256]) + one)
            print(
                f"epoch {epoch}: {len(samples)} files of {len(classes)} classes, "
                f"{size} bytes, md5 {digest.hexdigest()}"
            )


if __name__ == "__main__":
    main()
