"""What was received and sent on is overwritten in part; what was received whole is sent on in part."""

from msccl.language import *
from msccl.language.collectives import Collective
from msccl.topologies import *


class Partly(Collective):
    def init_buffers(self):
        return [{Buffer.input: [Chunk(r, 0), Chunk(r, 1)], Buffer.output: [None, None]} for r in range(3)]

    def check(self, prog):
        sums = [Chunk(0, i).reduce(-1, Chunk(1, i)) for i in range(2)]
        wanted = [[Chunk(0, 1), Chunk(0, 0)], [Chunk(2, 0), sums[1]], sums]
        return [buffers[Buffer.output] for buffers in prog.buffers] == wanted


with MSCCLProgram("partly", fully_connected(3), Partly(3, 2, False), 2):
    both = chunk(1, Buffer.input, 0, 2).reduce(chunk(0, Buffer.input, 0, 2))
    both.copy(2, Buffer.output, 0)
    chunk(2, Buffer.input, 0).copy(1, Buffer.input, 0)
    chunk(1, Buffer.input, 0, 2).copy(1, Buffer.output, 0)
    for i, c in enumerate(chunk(0, Buffer.input, 0, 2).copy(1, "turned").split(2)):
        c.copy(0, Buffer.output, 1 - i)
    XML()
    assert Check()
