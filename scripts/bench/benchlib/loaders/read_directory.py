"""The loader of a directory of images: unmodified torchvision ImageFolder. Also used for every mount."""

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


def loader(path, load, workers, seed):
    images = ImageFolder(path, loader=read, transform=load)
    return DataLoader(images, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True,
                      generator=torch.Generator().manual_seed(seed))
