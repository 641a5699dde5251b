"""Memory-maps rows of arrays and weights of models: NumPy, torch and safetensors.

Usage: mapped.py DIRECTORY
"""

import hashlib
import sys

import numpy
import safetensors
import safetensors.torch
import torch


class Rows(torch.utils.data.Dataset):
    """Rows of an array that each worker maps and never reads completely."""

    def __init__(self, path):
        self.rows = numpy.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(numpy.array(self.rows[index]))


def digest(*tensors):
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def loaded(path):
    """Newer versions map the file, and run no code from it by default."""
    if "mmap" in torch.load.__code__.co_varnames:
        return torch.load(path, mmap=True, weights_only=True)
    return torch.load(path)


def main():
    root = sys.argv[1]
    for workers in [0, 2]:
        loader = torch.utils.data.DataLoader(Rows(f"{root}/rows.npy"), batch_size=64, shuffle=True,
                                             generator=torch.Generator().manual_seed(3), num_workers=workers)
        print("rows", workers, digest(*loader))
    with numpy.load(f"{root}/several.npz") as several:
        print("npz", {name: repr(several[name].sum()) for name in several.files})
    flat = numpy.memmap(f"{root}/rows.npy", dtype="uint8", mode="r", offset=128)
    print("memmap", flat.shape, hashlib.sha256(flat[1000:90_000:3].tobytes()).hexdigest())
    state = loaded(f"{root}/state.pt")
    print("state", len(state), digest(*(state[name] for name in sorted(state))))
    print("safetensors", digest(*(value for _, value in sorted(
        safetensors.torch.load_file(f"{root}/state.safetensors").items()))))
    with safetensors.safe_open(f"{root}/state.safetensors", framework="pt") as part:
        print("one of them", digest(part.get_slice("layer7.weight")[3:9]))


if __name__ == "__main__":
    main()
