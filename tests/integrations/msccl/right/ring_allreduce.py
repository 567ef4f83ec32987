"""Ring AllReduce; every chunk has a thread block and a channel of its own, or shares them."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def ring_allreduce(size, channels, instances, protocol, fusion):
    collective = AllReduce(size, size, inplace=True)
    with MSCCLProgram(
        f"ring_{channels}",
        ring(size),
        collective,
        instances,
        protocol=protocol,
        threadblock_policy=ThreadblockPolicy.manual,
        instr_fusion=fusion,
    ):
        for index in range(size):
            lane = index % channels
            c = chunk((index + 1) % size, Buffer.input, index)
            for step in range(2, size + 1):
                target = chunk((index + step) % size, Buffer.input, index)
                c = target.reduce(c, sendtb=lane, recvtb=lane, ch=lane)
            for step in range(1, size):
                c = c.copy((index + step) % size, Buffer.input, index, sendtb=lane, recvtb=lane, ch=lane)
        XML()
        assert Check()


parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("channels", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--protocol", choices=["Simple", "LL", "LL128"], default="LL128")
parser.add_argument("--plain", action="store_true")
args = parser.parse_args()
ring_allreduce(args.size, args.channels, args.instances, args.protocol, not args.plain)
