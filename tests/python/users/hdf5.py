"""Reads an HDF5 file with h5py, opened with default options, in one process and in several.

Usage: hdf5.py DIRECTORY
"""

import hashlib
import multiprocessing
import sys

import h5py
import numpy

DRIVERS = [{}, {"driver": "stdio"}, {"driver": "core", "backing_store": False}, {"locking": True},
           {"locking": False}]


def rows(path, chosen):
    with h5py.File(path, "r") as file:
        parts = [file["chunked"][chosen].tobytes(), file["whole"][chosen[0] % 500].tobytes()]
        return hashlib.sha256(b"".join(parts)).hexdigest()


def main():
    path = f"{sys.argv[1]}/table.h5"
    for options in DRIVERS:
        with h5py.File(path, "r", **options) as file:
            names = []
            file.visit(names.append)
            total = file["whole"][:].sum() + file["chunked"][::7].sum()
            print(options, names, repr(total), file["group/names"][17], dict(file["group"].attrs))
    choose = numpy.random.default_rng(1)
    wanted = [(path, sorted(choose.choice(3000, 50, replace=False))) for _ in range(40)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        print(hashlib.sha256("".join(pool.starmap(rows, wanted)).encode()).hexdigest())


if __name__ == "__main__":
    main()
