"""What a worker does with the bytes of an image: look at all of them, or decode them as for training.

Both first return a checksum and a number of bytes, by which the forms are compared.
"""

import io
import zlib

import numpy
from PIL import Image


def checksum(data):
    """A checksum of the bytes. Only two numbers are passed to the training process."""
    return zlib.crc32(data), len(data)


def decode(data):
    """Decodes to 224 x 224 pixels of three colors, which are passed on."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = numpy.array(image.convert("RGB").resize((224, 224), Image.BILINEAR))
    return zlib.crc32(pixels), len(data), pixels


def combined(sums, labels):
    """One checksum of a batch. Sums of these do not depend on the order, but on which image has which label."""
    return int((sums * (2 * labels + 1)).sum())


LOADS = {"checksum": checksum, "decode": decode}
