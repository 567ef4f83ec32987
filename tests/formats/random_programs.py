"""Random programs out and in again: ``python -m tests.formats.random_programs 10000``.

Each is exported for some runtime, protocol, placement, size and number of instances, re-read, exported to the same
bytes, and executed by the reference in random orders, with 2 and with 8 slots, whole and with every step cut into the
FIFO operations that some runtime makes of it in a call of that size or a smaller one. A failure names the seed that
makes it again.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace

from hocket.cli.export import Wishes, export_program
from hocket.errors import TargetLimit
from hocket.formats.msccl_document import parse_document, sizes
from hocket.formats.msccl_legal import cut
from hocket.formats.msccl_operations import grains
from hocket.formats.msccl_targets import MSCCL, RCCL, SLOTS
from hocket.formats.msccl_xml import read, write
from tests.property.programs import check_reference, random_case

# RCCL has no word for a collective of one's own; with one, its limits can be tried too.
TARGETS = (MSCCL, replace(RCCL, words=MSCCL.words))


def check(seed: int) -> str | None:
    """The limit that refuses the program; None if all went well."""
    rng = random.Random(seed)
    case = random_case(rng)
    target = rng.choice(TARGETS)
    protocol = rng.choice(tuple(SLOTS))
    most = rng.choice((None, 1 << rng.randrange(8, 24)))
    wishes = Wishes(target, protocol, rng.choice((1, 1, 2, 3)), rng.choice((None, False, True)), max_bytes=most)
    try:
        text = export_program(case.program(), wishes)
    except TargetLimit as refused:
        return f"{target.name}: {refused.reason.partition(';')[0]}"
    schedule = read(text)
    assert write(schedule, target, protocol=protocol, max_bytes=most) == text
    document = parse_document(text)
    served = grains(protocol, document.loop_chunks, *sizes(document), [target.name])
    operations = [cut(schedule, grain.chunks) for grain in rng.sample(served, min(3, len(served)))]
    for slots in {SLOTS[protocol], 8}:
        for each in dict.fromkeys([schedule, *operations]):
            check_reference(case, replace(each, slots=slots), rng.randrange(1 << 30))
    return None


def main(count: int) -> None:
    refused: Counter[str] = Counter()
    for seed in range(count):
        try:
            reason = check(seed)
        except BaseException:
            print(f"seed {seed} failed", file=sys.stderr)
            raise
        if reason is not None:
            refused[reason] += 1
    right = count - refused.total()
    print(f"{count} random programs, {right} exported, re-read and executed: none wrong, none stuck, none racing")
    for reason, times in refused.most_common():
        print(f"{times} refused: {reason}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10000)
