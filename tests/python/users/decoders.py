"""Decodes every JPEG of a directory with PIL, by path and from bytes, and with torchvision.io. Prints digests.

Usage: decoders.py DIRECTORY
"""

import hashlib
import io
import pathlib
import sys

import numpy
import torch
from PIL import Image
from torchvision import io as vision


class Pictures(torch.utils.data.Dataset):
    def __init__(self, files, decode):
        self.files, self.decode = files, decode

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return numpy.ascontiguousarray(self.decode(self.files[index]))


def by_path(path):
    with Image.open(path) as picture:
        return numpy.asarray(picture.convert("RGB"))


def draft(path):
    """Decodes to a quarter of the size, for which PIL reads and skips."""
    with Image.open(path) as picture:
        picture.draft("RGB", (32, 32))
        return numpy.asarray(picture)


WAYS = {
    "PIL": by_path,
    "PIL, of bytes": lambda path: numpy.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB")),
    "PIL, draft": draft,
    "torchvision.io.read_image": lambda path: vision.read_image(str(path)).numpy(),
    "torchvision.io.decode_jpeg": lambda path: vision.decode_jpeg(vision.read_file(str(path))).numpy(),
}


def main():
    files = sorted(pathlib.Path(sys.argv[1]).rglob("*.jpg"))
    for name, decode in WAYS.items():
        digest = hashlib.sha256()
        for picture in torch.utils.data.DataLoader(Pictures(files, decode), batch_size=None, num_workers=2):
            digest.update(repr(picture.shape).encode() + picture.numpy().tobytes())
        print(f"{name}: {len(files)} pictures, {digest.hexdigest()}")


if __name__ == "__main__":
    main()
