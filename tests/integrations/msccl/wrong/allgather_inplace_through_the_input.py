from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

# The original takes the destination's input for the place that belongs to the sender.
with MSCCLProgram("allgather", fully_connected(2), AllGather(2, 1, inplace=True), 1):
    for r in range(2):
        chunk(r, Buffer.input, 0).copy(1 - r, Buffer.input, 0)
    XML()
