"""The loader of an LMDB file with a value for each path."""

import lmdb
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, path, load):
        self.path, self.load, self.reader = path, load, None
        with self.opened() as database, database.begin() as reader:
            self.paths = reader.get(b"paths").decode().split("\n")
        classes = sorted({path.split("/")[-2] for path in self.paths})
        self.labels = {name: label for label, name in enumerate(classes)}

    def opened(self):
        return lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        # Opened after the workers are forked, because they must not share an open database.
        if self.reader is None:
            self.reader = self.opened().begin()
        path = self.paths[index]
        return self.load(self.reader.get(path.encode())), self.labels[path.split("/")[-2]]


def loader(path, load, workers, seed):
    images = Images(path, load)
    return DataLoader(images, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True,
                      generator=torch.Generator().manual_seed(seed))
