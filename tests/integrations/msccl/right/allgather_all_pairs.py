"""In-place AllGather that copies from input to input: the sender's, in the output of the other rank."""

import sys

from msccl.language import *
from msccl.language.collectives import AllGather
from msccl.topologies import *

size, chunks, instances = map(int, sys.argv[1:])

with MSCCLProgram(
    "all_pairs",
    fully_connected(size),
    AllGather(size, chunks, inplace=True),
    instances,
    protocol="LL128",
    threadblock_policy=ThreadblockPolicy.manual,
):
    for r in range(size):
        for other in range(size):
            if other != r:
                for index in range(chunks):
                    c = chunk(r, Buffer.input, index).copy(other, Buffer.input, index, sendtb=other, recvtb=r)
                    assert (c.rank, c.buffer, c.index) == (other, Buffer.output, r * chunks + index)
    XML()
    assert Check()
