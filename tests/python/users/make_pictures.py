"""Makes JPEGs of 64 to 256 pixels a side, a directory for each class: the same bytes every time.

Usage: make_pictures.py DIRECTORY CLASSES PICTURES_OF_EACH
"""

import pathlib
import sys

import numpy
from PIL import Image


def picture(rng, hue):
    """A gradient in the color of the class, and noise, so that the file has a few kilobytes."""
    width, height = (int(side) for side in rng.integers(64, 257, 2))
    pixels = rng.integers(0, 64, (height, width, 3)).astype("uint8")
    pixels[:, :, hue % 3] += numpy.linspace(0, 190, width).astype("uint8")
    return Image.fromarray(pixels)


def main():
    directory, classes, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = numpy.random.default_rng(0)
    for number in range(classes):
        class_directory = directory / f"class{number:02}"
        class_directory.mkdir(parents=True)
        for name in range(count):
            picture(rng, number).save(class_directory / f"{name:05}.jpg", quality=80)


if __name__ == "__main__":
    main()
