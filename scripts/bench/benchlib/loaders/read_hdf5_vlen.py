"""The loader of an HDF5 file with an array of bytes for each image."""

import h5py
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, path, load):
        self.path, self.load, self.images = path, load, None
        with h5py.File(path) as file:
            self.labels = file["labels"][:]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        # Opened after the workers are forked, because they must not share an open HDF5 file.
        if self.images is None:
            self.images = h5py.File(self.path)["images"]
        return self.load(self.images[index].tobytes()), int(self.labels[index])


def loader(path, load, workers, seed):
    images = Images(path, load)
    return DataLoader(images, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True,
                      generator=torch.Generator().manual_seed(seed))
