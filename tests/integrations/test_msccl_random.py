"""Random programs in msccl-tools' style, with thread blocks of their own, compute what their operations say."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import Unsupported
from hocket.formats.msccl_xml import read
from hocket.integrations.msccl.chunks import Buffer, Buffers, Chunk
from hocket.integrations.msccl.collectives import Collective
from hocket.integrations.msccl.language import chunk
from hocket.integrations.msccl.program import MSCCLProgram, ThreadblockPolicy
from hocket.integrations.msccl.topologies import fully_connected
from hocket.ir.schedule import Schedule
from hocket.semantics import Array, reference

RANKS, CHUNKS, N = 4, 3, 12
BUFFERS = (Buffer.input, Buffer.output, "a", "b")


class Anything(Collective):
    """Chunks in the input; whatever a program makes of them is right."""

    def init_buffers(self) -> Buffers:
        return [
            {Buffer.input: [Chunk(r, i) for i in range(CHUNKS)], Buffer.output: [None] * CHUNKS} for r in range(RANKS)
        ]


places = st.tuples(st.integers(0, RANKS - 1), st.sampled_from(BUFFERS), st.integers(0, CHUNKS - 1))
operations = st.lists(
    st.tuples(st.booleans(), places, places, st.integers(1, CHUNKS), st.integers(0, 3)), min_size=1, max_size=25
)


def blocks(src: int, dst: int, local: int, way: str) -> tuple[int, int]:
    """sendtb and recvtb: one thread block a peer, two, or local operations only."""
    if src == dst:
        return local, -1
    if way == "peer":
        return dst, src
    return (dst, 10 + src) if way == "apart" else (-1, -1)


@settings(max_examples=60, deadline=None)
@given(
    wanted=operations,
    way=st.sampled_from(["peer", "apart", "local"]),
    instances=st.integers(1, 3),
    fusion=st.booleans(),
    protocol=st.sampled_from(["Simple", "LL"]),
)
def test_random_programs(
    wanted: list[tuple[bool, tuple[int, str, int], tuple[int, str, int], int, int]],
    way: str,
    instances: int,
    fusion: bool,
    protocol: str,
) -> None:
    inputs = [(np.arange(CHUNKS * N) * 1009 + r * 1000003 + 1).astype(np.int64) for r in range(RANKS)]
    held: dict[tuple[int, object, int], Array] = {
        (r, Buffer.input, i): inputs[r][i * N : i * N + N] for r in range(RANKS) for i in range(CHUNKS)
    }
    program = MSCCLProgram(
        "random",
        fully_connected(RANKS),
        Anything(RANKS, CHUNKS, False),
        instances,
        protocol,
        ThreadblockPolicy.manual,
        instr_fusion=fusion,
    )
    with program:
        for reduces, (r, a, i), (q, b, j), count, local in wanted:
            sources = [(r, a, i + k) for k in range(count)]
            targets = [(q, b, j + k) for k in range(count)]
            if max(i, j) + count > CHUNKS or not all(place in held for place in sources) or {*sources} & {*targets}:
                continue
            if reduces and not all(place in held for place in targets):
                continue
            sendtb, recvtb = blocks(r, q, local, way)
            if reduces:
                chunk(q, b, j, count).reduce(chunk(r, a, i, count), sendtb, recvtb)
            else:
                chunk(r, a, i, count).copy(q, b, j, sendtb, recvtb)
            for source, target in zip(sources, targets, strict=True):
                held[target] = held[target] + held[source] if reduces else held[source]
    try:
        schedule = program.schedule()
    except Unsupported:  # a chunk counted twice
        return
    compare(schedule, inputs, held)
    compare(read(program.generate_xml()), inputs, held)


def compare(schedule: Schedule, inputs: list[Array], held: dict[tuple[int, object, int], Array]) -> None:
    for seed in (None, 0, 1):
        outputs = reference(schedule, [array.copy() for array in inputs], seed=seed)
        for rank, output in enumerate(outputs):
            for index in range(len(output) // N):
                # Where no operation comes to an output, the input is taken for it only if the collective is in place.
                if (rank, Buffer.output, index) in held:
                    found = output[index * N : index * N + N]
                    np.testing.assert_array_equal(found, held[rank, Buffer.output, index])
