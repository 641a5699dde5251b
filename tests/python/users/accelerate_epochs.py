"""An epoch over an image directory with datasets and accelerate, on the processes that `accelerate launch` starts.

Usage: accelerate_epochs.py DIRECTORY CACHE

Prints a digest of what the epoch delivered, whatever process got which image.
"""

import hashlib
import sys

import accelerate
import datasets
import numpy
import torch


def collate(rows):
    digests = [f"{row['label']} {hashlib.sha256(numpy.asarray(row['image']).tobytes()).hexdigest()}" for row in rows]
    return {"label": torch.tensor([row["label"] for row in rows]), "digests": digests}


def main():
    datasets.disable_progress_bars()
    accelerator = accelerate.Accelerator(cpu=True)
    with accelerator.main_process_first():
        rows = datasets.load_dataset("imagefolder", data_dir=sys.argv[1], cache_dir=sys.argv[2], split="train")
    loader = torch.utils.data.DataLoader(rows, batch_size=8, num_workers=2, shuffle=True, collate_fn=collate)
    loader = accelerator.prepare(loader)
    seen = [digest for batch in loader for digest in batch["digests"]]
    everything = accelerate.utils.gather_object(seen)
    if accelerator.is_main_process:
        print(accelerator.num_processes, len(everything), hashlib.sha256("\n".join(sorted(everything)).encode()).hexdigest())


if __name__ == "__main__":
    main()
