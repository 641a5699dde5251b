"""Imports the packages of a training script and computes something small with each."""

import io

import datasets
import h5py
import numpy
import pandas
import pyarrow
import torch
import torchvision


def main():
    print(torch.ones(2).sum(), torch.linalg.eigvalsh(torch.eye(3)), torch.nn.Linear(3, 2).weight.shape)
    torch.manual_seed(0)
    print(torchvision.models.resnet18().eval()(torch.zeros(1, 3, 64, 64)).sum().item() != 0)
    print(pandas.DataFrame({"a": numpy.arange(5)}).a.sum(), pyarrow.array([1, None]).null_count)
    with h5py.File(io.BytesIO(), "w") as file:
        file["a"] = numpy.arange(4)
        print(file["a"][2])
    print(datasets.Dataset.from_dict({"a": [1, 2]}).features)


if __name__ == "__main__":
    main()
