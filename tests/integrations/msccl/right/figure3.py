"""The paper's hierarchical AllReduce (Figures 1 and 3): aggregated operations between nodes, instances within."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def reduce_scatter(ranks, offset, count, ch):
    size = len(ranks)
    for position in range(size):
        index = offset + position * count
        c = chunk(ranks[(position + 1) % size], Buffer.input, index, count)
        for step in range(2, size + 1):
            c = chunk(ranks[(position + step) % size], Buffer.input, index, count).reduce(c, ch=ch)


def all_gather(ranks, offset, count, ch):
    size = len(ranks)
    for position in range(size):
        index = offset + position * count
        c = chunk(ranks[position], Buffer.input, index, count)
        for step in range(1, size):
            c = c.copy(ranks[(position + step) % size], Buffer.input, index, ch=ch)


parser = argparse.ArgumentParser()
parser.add_argument("nodes", type=int)
parser.add_argument("gpus", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--blocked", action="store_true")
args = parser.parse_args()
N, G = args.nodes, args.gpus

with MSCCLProgram(
    "figure3",
    fully_connected(N * G),
    AllReduce(N * G, N * G, True),
    args.instances,
    interleaved_replication=not args.blocked,
):
    for n in range(N):
        reduce_scatter(list(range(n * G, n * G + G)), 0, N, 0)
    for g in range(G):
        across = list(range(g, N * G, G))
        reduce_scatter(across, g * N, 1, 1)
        all_gather(across, g * N, 1, 1)
    for n in range(N):
        all_gather(list(range(n * G, n * G + G)), 0, N, 2)
    XML()
    assert Check()
