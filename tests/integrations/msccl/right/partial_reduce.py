"""A collective derived from AllReduce that is content with less than the whole sum."""

import argparse

from msccl.collectives import *
from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


class Partial(AllReduce):
    def __init__(self, num_ranks, chunk_factor, skipped, inplace=True):
        super().__init__(num_ranks, chunk_factor, inplace)
        self.skipped = skipped

    def check(self, prog):
        least = self.num_ranks - self.skipped
        return all(
            len(getattr(held, "chunks", [held])) >= least for buffers in prog.buffers for held in buffers[Buffer.input]
        )


parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("--skip", type=int, default=1)
args = parser.parse_args()
size = args.size

with MSCCLProgram("partial", fully_connected(size), Partial(size, size, args.skip), 2):
    for index in range(size):
        c = chunk(index, Buffer.input, index)
        reached = size - args.skip
        for step in range(1, reached):
            c = chunk((index + step) % size, buffer=Buffer.input, index=index).reduce(c)
        for step in range(reached, reached + size - 1):
            c = c.copy((index + step) % size, buffer=Buffer.input, index=index)
    assert Check()
    XML()
