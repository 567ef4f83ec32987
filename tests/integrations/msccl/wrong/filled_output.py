from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *


class Filled(Collective):
    def init_buffers(self):
        return [{Buffer.input: [], Buffer.output: [Chunk(r, 0), None]} for r in range(2)]


MSCCLProgram("filled", fully_connected(2), Filled(2, 1, True), 1)
