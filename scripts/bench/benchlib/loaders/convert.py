"""Converts a tar of images in directories by class to HDF5, LMDB and WebDataset.

Each conversion follows the documentation of its package, in one pass over the tar.
"""

import pathlib
import random
import tarfile

import h5py
import lmdb
import numpy
import webdataset

# At least two shards for each of many workers. A million images would use shards ten times as large.
SHARD_IMAGES = 125


def members(tar):
    """Path and bytes of all images, in the tar's order."""
    with tarfile.open(tar, "r|") as archive:
        for member in archive:
            if member.isreg():
                yield member.name, archive.extractfile(member).read()


def class_of(path):
    return path.split("/")[-2]


def hdf5_bytes(tar, output):
    """One dataset with the bytes of all images one after another, and the end offset of each."""
    ends, labels, classes = [0], [], {}
    with h5py.File(output, "w") as file:
        images = file.create_dataset("images", (pathlib.Path(tar).stat().st_size,), numpy.uint8)
        for path, data in members(tar):
            images[ends[-1]:ends[-1] + len(data)] = numpy.frombuffer(data, numpy.uint8)
            ends.append(ends[-1] + len(data))
            labels.append(classes.setdefault(class_of(path), len(classes)))
        file["ends"], file["labels"] = ends, labels


def hdf5_vlen(tar, output):
    """One dataset with an array of bytes for each image."""
    labels, classes = [], {}
    with h5py.File(output, "w") as file:
        images = file.create_dataset("images", (0,), h5py.vlen_dtype(numpy.uint8), maxshape=(None,),
                                     chunks=(1024,))
        for path, data in members(tar):
            if len(labels) == len(images):
                images.resize(len(images) + 1024, axis=0)
            images[len(labels)] = numpy.frombuffer(data, numpy.uint8)
            labels.append(classes.setdefault(class_of(path), len(classes)))
        images.resize(len(labels), axis=0)
        file["labels"] = labels


def lmdb_keys(tar, output):
    """A value for each path, and the list of all paths under one more key."""
    paths = []
    with lmdb.open(output, map_size=2 * pathlib.Path(tar).stat().st_size + (1 << 26), subdir=False,
                   lock=False) as database, database.begin(write=True) as transaction:
        for path, data in members(tar):
            transaction.put(path.encode(), data)
            paths.append(path)
        transaction.put(b"paths", "\n".join(paths).encode())


def shards(tar, output):
    """Tars of the images in a fixed random order, each with its label."""
    images = list(members(tar))
    classes = {name: label for label, name in enumerate(sorted({class_of(path) for path, _ in images}))}
    random.Random(0).shuffle(images)
    pathlib.Path(output).mkdir()
    with webdataset.ShardWriter(f"{output}/%06d.tar", maxcount=SHARD_IMAGES, verbose=0) as writer:
        for path, data in images:
            writer.write({"__key__": path.removesuffix(".JPEG"), "jpg": data, "cls": classes[class_of(path)]})


FUNCTIONS = {one.__name__: one for one in [hdf5_bytes, hdf5_vlen, lmdb_keys, shards]}
