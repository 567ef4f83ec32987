"""All pairs: gather the peers' shares in scratch, add them up with several thread blocks, send the sum to all."""

import sys

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

size, instances, interleaved = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "interleaved"

with MSCCLProgram(
    "all_pairs",
    fully_connected(size),
    AllReduce(size, size * size, True),
    instances,
    "LL",
    threadblock_policy=ThreadblockPolicy.manual,
    interleaved_replication=interleaved,
    dependence_nop=True,
):
    for r in range(size):
        for peer in range(size):
            if r != peer:
                share = chunk(r, Buffer.input, peer * size, size=size)
                share.copy(peer, "gathered", sendtb=peer, recvtb=r)
    for r in range(size):
        for index in range(size * (size - 1)):
            c = chunk(r, Buffer.input, r * size + index % size)
            c.reduce(chunk(r, "gathered", index), sendtb=index % size)
    for r in range(size):
        for peer in range(size):
            if r != peer:
                chunk(r, Buffer.input, r * size, size).copy(peer, Buffer.input, r * size, sendtb=peer, recvtb=r)
    XML()
    assert Check()
