"""What lower() returns, as tests of msccl-tools' own look at it."""

from msccl.language import *
from msccl.language.collectives import AllReduce, AllToAll
from msccl.topologies import *

chain = MSCCLProgram("chain", fully_connected(3), AllReduce(3, 3, True), 1, threadblock_policy=ThreadblockPolicy.manual)
with chain:
    c = chunk(1, Buffer.input, 0, 3).reduce(chunk(0, Buffer.input, 0, 3), sendtb=0, recvtb=0, ch=0)
    c = chunk(2, Buffer.input, 0, 3).reduce(c, sendtb=0, recvtb=0, ch=0)
    c.copy(0, Buffer.input, 0, sendtb=0, recvtb=0, ch=0).copy(1, Buffer.input, 0, sendtb=0, recvtb=0, ch=0)
program = chain.lower()
assert (program.name, program.collective, program.inplace, program.protocol) == ("chain", "allreduce", True, "Simple")
done = [[[op.inst for op in block.ops] for block in gpu.threadblocks] for gpu in program.gpus]
assert done == [
    [[Instruction.send, Instruction.recv_copy_send]],
    [[Instruction.recv_reduce_send, Instruction.recv]],
    [[Instruction.recv_reduce_copy_send]],
]
first = program.gpus[0].threadblocks[0]
assert (first.id, first.channel, first.send, first.recv) == (0, 0, 1, 2)
send, forward = first.ops
assert (send.src.buffer, send.src.index, send.src.size, send.dst) == (Buffer.input, 0, 3, None)
assert (forward.step, forward.tb, forward.rank, forward.src, forward.dst.size) == (1, 0, 0, None, 3)


def swap(instances):
    with MSCCLProgram("swap", fully_connected(2), AllToAll(2, 1, False), instances) as p:
        for a in range(2):
            for b in range(2):
                chunk(a, Buffer.input, b).copy(b, Buffer.output, a)
    return p.lower()


one, two = swap(1), swap(2)
assert [2 * len(gpu.threadblocks) for gpu in one.gpus] == [len(gpu.threadblocks) for gpu in two.gpus]
assert [gpu.input_chunks for gpu in two.gpus] == [4, 4]

with MSCCLProgram("waits", fully_connected(2), AllReduce(2, 1, True), 1, protocol="LL") as waits:
    for r in range(2):
        chunk(r, Buffer.input, 0).copy(1 - r, Buffer.scratch, 0)
    for r in range(2):
        chunk(r, Buffer.input, 0).reduce(chunk(r, Buffer.scratch, 0))
for gpu in waits.lower().gpus:
    assert gpu.scratch_chunks == 1
    found = [op for block in gpu.threadblocks for op in block.ops if op.depends]
    assert found
    assert all(other in gpu.threadblocks[other.tb].ops for op in found for other in op.depends)
