from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("stale", fully_connected(3), AllReduce(3, 1, True), 1):
    mine = chunk(0, Buffer.input, 0)
    chunk(0, Buffer.input, 0).reduce(chunk(1, Buffer.input, 0))
    mine.reduce(chunk(2, Buffer.input, 0))
