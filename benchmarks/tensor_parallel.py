"""What tensor parallelism asks of the collectives: ``torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py``.

A layer like Llama's, hidden size 4096 in bfloat16, decodes one token for each sequence of a batch: after attention and
after the perceptron an all_reduce of (batch, 4096). The products between them are left out. Microseconds a layer.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch_pairs import Groups

HIDDEN = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a window")
    given = parser.parse_args()
    groups = Groups()
    if groups.rank == 0:
        print(f"{'batch':>6}{'gloo us':>10}{'ours us':>10}{'ratio':>9}", flush=True)
    for batch in 1, 2, 4, 8, 16, 32, 64:
        attention, perceptron = torch.zeros(2, batch, HIDDEN, dtype=torch.bfloat16)

        def layer(group: dist.ProcessGroup, sums: tuple[torch.Tensor, ...] = (attention, perceptron)) -> None:
            for partial in sums:
                dist.all_reduce(partial, group=group)

        found = groups.compare(layer, seconds=given.seconds, rounds=given.rounds)
        if groups.rank == 0:
            print(f"{batch:6}{found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
