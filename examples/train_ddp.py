"""Data-parallel training as users of PyTorch write it: ``torchrun --nproc-per-node 2 examples/train_ddp.py``.

Nothing here knows hocket. With ``HOCKET=1`` in the environment, hocket makes the collectives. Every rank trains on
images of its own, made on the spot, and an image's tint tells its class, so the loss falls. ``--model`` sets how many
parameters there are: 0.2 million, ResNet-50's 25.6 or VGG-16's 138. At the end the ranks compare their weights, bit by
bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 1000


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al., CVPR'16, figure 5)."""

    def __init__(self, inputs: int, inner: int, stride: int):
        super().__init__()
        outputs = 4 * inner
        self.body = nn.Sequential(
            conv(inputs, inner, 1), nn.ReLU(), conv(inner, inner, 3, stride), nn.ReLU(), conv(inner, outputs, 1)
        )
        nn.init.zeros_(self.body[-1][1].weight)  # it begins as the identity
        self.skip = nn.Identity() if inputs == outputs else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    layers = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(width, inner, 2 if block == 0 and inner > 64 else 1))
            width = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def vgg16() -> nn.Module:
    """Configuration D of Simonyan and Zisserman, ICLR'15."""
    layers: list[nn.Module] = []
    width = 3
    for outputs, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(width, outputs, 3, 1, 1), nn.ReLU()]
            width = outputs
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(width * 49, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES))


def small() -> nn.Module:
    layers = [conv(3, 64, 3, 2), nn.ReLU(), conv(64, 128, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, CLASSES))


MODELS = {"small": small, "resnet50": resnet50, "vgg16": vgg16}


def images(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of noise, each image with the tint of its class, of which eight occur."""
    labels = torch.randint(8, (batch,), generator=generator)
    tint = torch.stack([labels % 2, labels // 2 % 2, labels // 4], dim=1) * 2.0 - 1
    return tint[:, :, None, None] + 0.1 * torch.randn(batch, 3, 32, 32, generator=generator), labels


def digest(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for value in model.parameters():
        sha.update(value.detach().numpy().tobytes())
    return sha.hexdigest()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="images of a rank in a step")
    parser.add_argument("--views", action="store_true", help="gradients are views of DDP's buckets")
    parser.add_argument("--prepare", metavar="MODULE:FUNCTION", help="called with the model of DDP")
    parser.add_argument("--compute", action="store_true", help="also time steps whose gradients stay where they are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written by rank 0")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    torch.manual_seed(1)
    model = DistributedDataParallel(MODELS[given.model](), gradient_as_bucket_view=given.views)
    if given.prepare:
        module, _, function = given.prepare.partition(":")
        getattr(importlib.import_module(module), function)(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses: list[float] = []
    seconds: dict[str, list[float]] = {"step": [], "backward": [], "compute": []}
    for _ in range(given.steps):
        x, labels = images(given.batch, generator)
        for what in ("compute", "backward") if given.compute else ("backward",):
            begun = time.perf_counter()
            optimizer.zero_grad(set_to_none=not given.views)
            with model.no_sync() if what == "compute" else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), labels)
                half = time.perf_counter()
                loss.backward()
            seconds[what].append(time.perf_counter() - half)
        optimizer.step()
        seconds["step"].append(time.perf_counter() - begun)
        losses.append(loss.item())
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model.module))
    if rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; weights of all ranks are the same: {len(set(digests)) == 1}")
        if given.json is not None:
            given.json.write_text(json.dumps({"losses": losses, "weights": digests, "seconds": seconds}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
