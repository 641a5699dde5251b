"""Two epochs of torchvision's ImageFolder with a DataLoader, shuffled by a seed. Prints the samples in order.

Usage: image_folder.py DIRECTORY START:WORKERS...       START: fork or spawn
"""

import hashlib
import sys

import torch
from torchvision import datasets, transforms


def epochs(dataset, start, workers):
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(7), num_workers=workers,
        multiprocessing_context=start if workers else None, persistent_workers=workers > 0)
    for epoch in range(2):
        digest, count = hashlib.sha256(), 0
        for pictures, labels in loader:
            digest.update(pictures.numpy().tobytes() + labels.numpy().tobytes())
            count += len(labels)
        what = f"{start}, {workers} workers, epoch {epoch}"
        print(f"{what}: {count} pictures, {digest.hexdigest()}", flush=True)


def main():
    shape = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()])
    dataset = datasets.ImageFolder(sys.argv[1], shape)
    print(len(dataset), dataset.class_to_idx)
    for words in sys.argv[2:]:
        start, workers = words.split(":")
        epochs(dataset, start, int(workers))


if __name__ == "__main__":
    main()
