from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("allgather", fully_connected(3), AllGather(3, 1, inplace=True), 1):
    for r in range(3):
        for other in range(3):
            if other != r:
                chunk(r, Buffer.input, 0).copy(other, Buffer.input, 0)
    # What rank 1 hands on is rank 0's, but it goes to rank 1's place.
    chunk(1, Buffer.output, 0).copy(2, Buffer.input, 0)
    assert not Check()
