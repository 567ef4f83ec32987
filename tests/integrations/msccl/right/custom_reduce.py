"""A Reduce whose result stays in the input, the way that collectives without an output are written."""

from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import line


class Reduce(Collective):
    def init_buffers(self):
        return [
            {
                Buffer.input: [Chunk(r, c, -1, c) for c in range(self.chunk_factor)],
                Buffer.output: [None] * self.chunk_factor,
            }
            for r in range(self.num_ranks)
        ]

    def check(self, prog):
        total = ReduceChunk(-1, [])
        for r in range(self.num_ranks):
            total = total.reduce(-1, Chunk(r, 0))
        return prog.buffers[self.num_ranks - 1][Buffer.input][0] == total


with MSCCLProgram("reduce", line(4), Reduce(4, 1, inplace=True), 2):
    c = chunk(0, Buffer.input, 0)
    for r in range(1, 4):
        c = chunk(r, Buffer.input, 0).reduce(c)
    XML()
    assert Check()
