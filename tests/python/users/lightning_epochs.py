"""Two epochs of PyTorch Lightning over an image directory, on two processes.

Usage: lightning_epochs.py DIRECTORY

Prints a digest of what each epoch delivered, whatever process got which image.
"""

import hashlib
import sys

import lightning
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Sums(lightning.LightningModule):
    """Learns nothing to speak of, and collects what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch):
        images, labels = batch
        self.seen += [f"{label} {hashlib.sha256(image.numpy().tobytes()).hexdigest()}"
                      for image, label in zip(images, labels.tolist())]
        return self.layer(labels[:, None].float()).mean()

    def on_train_epoch_end(self):
        everything = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(everything, self.seen)
        self.seen = []
        if self.global_rank == 0:
            lines = sorted(line for part in everything for line in part)
            print("epoch", len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest(), flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    lightning.seed_everything(7, verbose=False)
    prepare = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
    dataset = ImageFolder(sys.argv[1], prepare)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True, persistent_workers=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Sums(), loader)


if __name__ == "__main__":
    main()
