"""Rings within two nodes from the library of routines, then an exchange between them."""

from msccl.language import *
from msccl.language.collectives import *
from msccl.language.routines import *
from msccl.topologies import *

with MSCCLProgram("allgather_ring", fully_connected(4), AllGather(4, 1, True), 1):
    allgather_ring_inplace(4)
    XML()
    assert Check()

with MSCCLProgram("allreduce_nodes", fully_connected(8), AllReduce(8, 8, True), 2):
    for node in (0, 4):
        allreduce_ring_inplace(4, node, 0)
        allreduce_ring_inplace(4, node, 4, ch=1)
    for r in range(8):
        # Which node adds up which half: nobody overwrites what is still to be sent.
        if r < 4:
            other = chunk(r + 4, Buffer.output, r)
            chunk(r, Buffer.output, r).reduce(other).copy(r + 4, Buffer.output, r)
        else:
            other = chunk(r - 4, Buffer.output, r)
            chunk(r, Buffer.output, r).reduce(other).copy(r - 4, Buffer.output, r)
    for node in (0, 4):
        for g in range(4):
            for index in (g, g + 4):
                holder = g if index < 4 else g + 4
                c = chunk(holder if node == holder // 4 * 4 else (holder + 4) % 8, Buffer.output, index)
                for step in range(1, 4):
                    c = c.copy(node + (g + step) % 4, Buffer.output, index)
    XML()
    assert Check()
