"""Four operations whose transfers get a channel that both ends agree on."""

from msccl.language import *
from msccl.language.collectives import Collective
from msccl.topologies import *


class Anything(Collective):
    def init_buffers(self):
        held = [[Chunk(r, c) for c in range(3)] for r in range(4)]
        return [{Buffer.input: chunks, Buffer.output: chunks} for chunks in held]


with MSCCLProgram("four", fully_connected(4), Anything(4, 3, True), 1):
    chunk(1, Buffer.input, 2).reduce(chunk(2, Buffer.input, 2))
    chunk(2, Buffer.input, 1).reduce(chunk(3, Buffer.input, 1))
    chunk(2, Buffer.input, 2).copy(1, Buffer.input, 2)
    chunk(2, Buffer.input, 1).copy(1, Buffer.input, 1)
    XML()
    assert Check() is None
