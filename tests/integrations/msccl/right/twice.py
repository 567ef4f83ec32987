"""XML() before the end, and again: it only prints."""

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *

program = MSCCLProgram("twice", fully_connected(3), AllToAll(3, 2, False), 2, dependence_nop=True)
with program:
    for r in range(3):
        for peer in range(3):
            chunk(r, Buffer.input, 2 * peer, 2).copy(peer, Buffer.output, 2 * r)
    first, second = program.generate_xml(), program.generate_xml()
    assert first == second
    chunk(0, Buffer.output, 0).copy(1, "aside")
    assert program.generate_xml() != first
    XML()
    assert Check()
