"""Trains an image classifier with BatchNorm in a custom loop, with parameters and optimizer state
on NVMe.

    python examples/python/image_classifier.py [--nvme FOLDER] [--epochs N] [--save FILE]

The images, of four kinds of figures, are generated. BatchNorm's running means and variances are
buffers: they are kept in memory, and saved with the weights.
"""

import argparse

import torch
from torch import nn

import artesian

FIGURES = ["disc", "ring", "square", "cross"]
SIZE = 24


def draw(count, seed):
    """Noisy images with light figures at random places on a dark background, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(FIGURES), (count,), generator=generator)
    across, down, radius = torch.rand(3, count, 1, 1, generator=generator).unbind()
    radius = 4 + 4 * radius
    across, down = 9 + 6 * across, 9 + 6 * down
    x = (torch.arange(SIZE).view(1, 1, SIZE) - across).abs()
    y = (torch.arange(SIZE).view(1, SIZE, 1) - down).abs()
    distance = (x * x + y * y).sqrt()
    figures = [
        distance < radius,
        (distance - radius).abs() < 1.5,
        torch.maximum(x, y) < radius * 0.9,
        (torch.minimum(x, y) < 1.5) & (torch.maximum(x, y) < radius),
    ]
    light = torch.stack(figures)[labels, torch.arange(count)].float()
    noise = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return light[:, None] + 0.5 * noise, labels


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        inner = self.first_norm(self.first(x)).relu()
        return (x + self.second_norm(self.second(inner))).relu()


class Classifier(nn.Module):
    def __init__(self, channels=48, blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.blocks = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, len(FIGURES))

    def forward(self, x):
        x = self.stem_norm(self.stem(x)).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def accuracy(model, images, labels):
    """In evaluation mode: BatchNorm uses its running means."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvme", default="image-classifier-nvme")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", default="image-classifier.pt")
    given = parser.parse_args()
    torch.manual_seed(1)
    offload = {"device": "nvme", "nvme_path": given.nvme}
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 4e-3, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 100,
            "offload_param": {**offload, "max_in_cpu": 0},
            "offload_optimizer": offload,
        },
        "artesian": {"device_memory": "512KiB", "host_memory": "1MiB"},
    }
    images, labels = draw(512, seed=1)
    held_out = draw(256, seed=2)
    data = torch.utils.data.TensorDataset(images, labels)
    model = Classifier()
    engine, _, loader, scheduler = artesian.initialize(
        model=model,
        training_data=data,
        config=config,
        device="cpu",
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=4e-3, total_steps=given.epochs * len(images) // 32
        ),
    )
    for epoch in range(given.epochs):
        for batch, wanted in loader:
            loss = nn.functional.cross_entropy(engine(batch), wanted)
            engine.backward(loss)
            engine.step()  # also makes the scheduler's step
        right = accuracy(engine, *held_out)
        read = engine.last_step["bytes_nvme_read"] / 1e6
        print(
            f"epoch {epoch + 1}: loss {loss.item():.3f}, {right:.1%} of what is held out, "
            f"lr {scheduler.get_last_lr()[0]:.1e}, {read:.1f} MB read in a step"
        )
    torch.save(engine.consolidated_state_dict(), given.save)
    engine.destroy()
    plain = Classifier()  # plain PyTorch
    plain.load_state_dict(torch.load(given.save))
    print(f"loaded back: {accuracy(plain, *held_out):.1%}")


if __name__ == "__main__":
    main()
