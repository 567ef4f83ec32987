"""One chunk that goes to and fro; then on, along as many ranks as there are."""

import sys

from msccl.language import *
from msccl.language.collectives import AllGather, Collective
from msccl.topologies import *


class Along(Collective):
    def init_buffers(self):
        return [{Buffer.input: [Chunk(0, 0)] * (r == 0), Buffer.output: [None]} for r in range(self.num_ranks)]

    def check(self, prog):
        return prog.buffers[-1][Buffer.output] == [Chunk(0, 0)]


hops, ranks = map(int, sys.argv[1:])

with MSCCLProgram("bounce", fully_connected(2), AllGather(2, 1, False), 1):
    for r in range(2):
        chunk(r, Buffer.input, 0).copy(r, Buffer.output, r)
        c = chunk(r, Buffer.input, 0)
        for _ in range(hops):
            c = c.copy(1 - c.rank, "ball", r)
        c.copy(1 - r, Buffer.output, r)
    assert Check()

with MSCCLProgram("chain", line(ranks), Along(ranks, 1, False), 1):
    c = chunk(0, Buffer.input, 0)
    for r in range(1, ranks):
        c = c.copy(r, "on its way")
    c.copy(ranks - 1, Buffer.output, 0)
    assert Check()
