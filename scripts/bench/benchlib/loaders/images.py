"""Creates JPEGs with the dimensions and sizes of ImageNet's, and a tar of them.

Usage: python -m benchlib.loaders.images COUNT TAR

Landscape, portrait and square, 500 pixels on the longer side; color gradients and noise at quality 90; 110
KB on average. The same count and the same versions of Pillow and numpy give the same images. 50 per class,
train/n00000007/n00000007_12.JPEG, in the order of their names.
"""

import concurrent.futures
import io
import os
import sys
import tarfile

import numpy
from PIL import Image

EACH_CLASS = 50
SIZES = [(500, 375), (500, 375), (375, 500), (500, 333), (500, 500), (400, 300)]


def image(number):
    """The bytes of one JPEG."""
    rng = numpy.random.default_rng(number)
    width, height = SIZES[rng.integers(len(SIZES))]
    # A few colors, scaled up: gradients over the whole image and over parts of it.
    coarse, finer = (rng.integers(0, 256, (side, side, 3), dtype=numpy.uint8) for side in (4, 24))
    pixels = sum(share * numpy.asarray(Image.fromarray(colors).resize((width, height), Image.BICUBIC),
                                       dtype=numpy.float32)
                 for share, colors in [(0.7, coarse), (0.3, finer)])
    # Camera grain, equal in all colors of a pixel; its strength varies between images.
    grain = rng.standard_normal((height, width, 1), dtype=numpy.float32)
    pixels = numpy.clip(pixels + grain * rng.uniform(14, 52), 0, 255).astype(numpy.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def main(count, path):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive, \
            concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        directory("train", archive)
        for number, data in enumerate(pool.map(image, range(count), chunksize=EACH_CLASS)):
            label = f"n{number // EACH_CLASS:08d}"
            if number % EACH_CLASS == 0:
                directory(f"train/{label}", archive)
            member = tarfile.TarInfo(f"train/{label}/{label}_{number % EACH_CLASS:02d}.JPEG")
            member.size, member.mtime = len(data), 1_700_000_000
            archive.addfile(member, io.BytesIO(data))


def directory(name, archive):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, 1_700_000_000
    archive.addfile(member)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
