"""Three-step AllToAll: one pair of ranks carries all that goes from node to node; groups, splits, tuples as names."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *

parser = argparse.ArgumentParser()
parser.add_argument("nodes", type=int)
parser.add_argument("gpus", type=int)
parser.add_argument("--links", type=int, default=1)
args = parser.parse_args()
nodes, gpus = args.nodes, args.gpus
size = nodes * gpus


def carrier(here, there):
    return here * gpus + (there if here > there else there - 1) % gpus


with MSCCLProgram("three_step", fully_connected(size), AllToAll(size, 1, inplace=False), 1):
    carried = {}
    for n in range(nodes):
        for g in range(gpus):
            for m in range(nodes):
                if n == m:
                    for h in range(gpus):
                        c = chunk(n * gpus + g, Buffer.input, m * gpus + h)
                        c.copy(m * gpus + h, Buffer.output, c.get_dst_index())
                    continue
                c = chunk(n * gpus + g, Buffer.input, m * gpus, gpus)
                c = c.copy(carrier(n, m), (n, m), ch=2)
                carried[n, m] = carried[n, m].group(c) if (n, m) in carried else c
    for (n, m), everything in carried.items():
        assert everything.size == gpus * gpus
        for ch, part in enumerate(everything.split(args.links)):
            arrived = part.copy(carrier(m, n), buffer=(n, m), ch=ch)
            for c in arrived.split(arrived.size):
                c.copy(c.get_dst_rank(), Buffer.output, c.get_dst_index(), ch=1)
    XML()
    assert Check()
