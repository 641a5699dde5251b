"""The loader of WebDataset shards: reshuffled shards, and a shuffle buffer of 1,000 images per worker."""

import glob

import webdataset
from torch.utils.data import DataLoader


def loader(path, load, workers, seed):
    shards = sorted(glob.glob(f"{path}/*.tar"))
    images = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=seed, empty_check=False)
    images = images.shuffle(1000).to_tuple("jpg", "cls").map_tuple(load, int)
    return DataLoader(images, batch_size=64, num_workers=workers, persistent_workers=True)
