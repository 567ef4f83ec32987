from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("one_shot", fully_connected(3), AllReduce(3, 1, inplace=False), 1):
    for r in range(3):
        total = chunk(r, Buffer.input, 0).copy(r, Buffer.output, 0)
        for step in range(1, 3):
            total.reduce(chunk((r + step) % 3, Buffer.input, 0))
    assert Check()
    XML()
