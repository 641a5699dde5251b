"""Reads shards with the webdataset package: JPEGs decoded, shards and samples shuffled by a seed.

Usage: shards.py DIRECTORY WORKERS
"""

import glob
import hashlib
import sys

import numpy
import torch
import webdataset


def main():
    shards = sorted(glob.glob(f"{sys.argv[1]}/train/part-*.tar"))
    pipeline = webdataset.DataPipeline(
        webdataset.SimpleShardList(shards), webdataset.shuffle(100, seed=7), webdataset.split_by_worker,
        webdataset.tarfile_to_samples(), webdataset.shuffle(50, seed=7), webdataset.decode("rgb8"),
        webdataset.to_tuple("__key__", "jpg", "cls"))
    digest, count = hashlib.sha256(), 0
    loader = torch.utils.data.DataLoader(pipeline, batch_size=None, num_workers=int(sys.argv[2]))
    for key, picture, label in loader:
        digest.update(f"{key} {label} {picture.shape}".encode() + numpy.asarray(picture).tobytes())
        count += 1
    print(f"{len(shards)} shards, {count} samples, {digest.hexdigest()}")


if __name__ == "__main__":
    main()
