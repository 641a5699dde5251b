"""A rank of a distributed job: reads its share of an image directory and sums over all ranks. The first rank prints.

Usage: torchrun ... ranks.py DIRECTORY [fail]
"""

import sys

import torch
from torch import distributed
from torchvision import datasets, transforms


def main():
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    shape = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.PILToTensor()])
    dataset = datasets.ImageFolder(sys.argv[1], shape)
    shares = torch.utils.data.DistributedSampler(dataset, shuffle=True, seed=7)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=shares, num_workers=2)
    for epoch in range(2):
        shares.set_epoch(epoch)
        mine = torch.zeros(2, dtype=torch.int64)
        for number, (pictures, labels) in enumerate(loader):
            # The sum depends on the position of each pixel and the order of the samples.
            weights = torch.arange(1, pictures.numel() + 1) % 10_007
            mine += torch.tensor([(pictures.long().flatten() * weights).sum() * (number + 1), labels.sum()])
        each = [torch.zeros_like(mine) for _ in range(world)]
        distributed.all_gather(each, mine)
        total = mine.clone()
        distributed.all_reduce(total)
        assert torch.equal(total, sum(each)), (total, each)
        if rank == 0:
            print(f"epoch {epoch}, {world} ranks:", *(one.tolist() for one in [*each, total]), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    if sys.argv[2:] == ["fail"] and rank == 1:
        sys.exit(3)


if __name__ == "__main__":
    main()
