"""What tensor parallelism asks of the collectives: ``torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py``.

A layer like Llama's, hidden size 4096 in bfloat16, decodes one token for each sequence of a batch: after attention and
after the perceptron an all_reduce of (batch, 4096). The products between them are left out. Microseconds a layer, by
torch.distributed; then the same again, but hocket through what takes the place of vLLM's own kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch_pairs import Body, Groups

from hocket.torch.serving import Distributed

HIDDEN = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a window")
    given = parser.parse_args()
    groups = Groups()
    if groups.rank == 0:
        columns = f"{'gloo us':>10}{'ours us':>10}{'ratio':>9}"
        print(f"{'batch':>6}{columns:46}{'through vLLM:':>15}{columns}", flush=True)
    ours = groups.pair[1]
    adapter = Distributed(SimpleNamespace(device_group=ours))
    for batch in 1, 2, 4, 8, 16, 32, 64:
        partials = torch.zeros(2, batch, HIDDEN, dtype=torch.bfloat16).unbind()
        found = [
            groups.compare(body, seconds=given.seconds, rounds=given.rounds)
            for body in (layer(partials, {}), layer(partials, {ours: adapter}))
        ]
        if groups.rank == 0:
            print(f"{batch:6}{found[0]!s:46}{'':15}{found[1]}", flush=True)
    dist.destroy_process_group()


def layer(partials: Sequence[torch.Tensor], adapters: Mapping[dist.ProcessGroup, Distributed]) -> Body:
    """What a layer adds up; in a group that has an adapter, through that."""

    def sums(group: dist.ProcessGroup) -> None:
        all_reduce = adapters[group].all_reduce if group in adapters else dist.all_reduce
        for partial in partials:
            all_reduce(partial, group=group)

    return sums


if __name__ == "__main__":
    main()
