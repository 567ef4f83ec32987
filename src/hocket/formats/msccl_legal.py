"""A schedule in the form that MSCCL's XML can say: the target's opcodes, contiguous spans, few and dense channels.

What is rewritten keeps its meaning: sums are taken up to commutation, and a step waits for no less than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from hocket.errors import InvalidSchedule, TargetLimit, Where
from hocket.formats.msccl_document import XmlStep
from hocket.formats.msccl_targets import AWAITED, CHANNELS, COUNT, PER_CHANNEL, Target
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Shape
from hocket.ir.schedule import Destination, Rank, Receive, Schedule, Send, Source, Step, ThreadBlock, Wait

At = tuple[int, int, int]
"""A step: rank, thread block, position."""

Connection = tuple[int, int, int]
"""Sender, receiver, channel."""

_TYPES: dict[Shape, str] = {
    (0, 1, 1, 0): "s",
    (1, 0, 0, 1): "r",
    (0, 1, 0, 1): "cpy",
    (0, 2, 0, 1): "re",
    (1, 1, 0, 1): "rrc",
    (1, 0, 1, 1): "rcs",
    (1, 1, 1, 0): "rrs",
    (1, 1, 1, 1): "rrcs",
}


def xml_type(step: Step) -> str | None:
    """The opcode of a step; None if there is none for it. ``re`` adds to its destination."""
    found = _TYPES.get(step.shape)
    return None if found == "re" and step.dsts[0] not in step.srcs else found


FUSED = frozenset({"rcs", "rrs", "rrcs"})
"""Opcodes that receive and send: a slot stays full until another is free."""


def legalise(schedule: Schedule, target: Target, unfused: Callable[[Step], bool] = lambda step: False) -> Schedule:
    """The same for ``target``: un-fused, split and renumbered. Raises TargetLimit where no such rewriting helps.

    Fused steps for which ``unfused`` is true are un-fused though the target could do them.
    """
    for r, rank in enumerate(schedule.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for ends, verb in ((block.receives, "receives from"), (block.sends, "sends to")):
                if len(ends) > 1:
                    raise TargetLimit(
                        target.name,
                        f"rank {r}, thread block {b} {verb} {len(ends)} ranks or channels; a thread block has one "
                        "(compile with opcodes=True)",
                        places(block.steps),
                    )

    def native(step: Step) -> bool:
        type_ = xml_type(step)
        return type_ in target.opcodes and not (type_ in FUSED and unfused(step))

    return _awaited_first(_renumber(_split(_unfuse(schedule, native, "rrc" in target.opcodes)), target))


def places(steps: Iterable[Step | XmlStep]) -> tuple[Where, ...]:
    """Where the first and the last of some steps come from."""
    known = [step.where[0] for step in steps if step.where]
    return (known[0], known[-1]) if known else ()


def cut(schedule: Schedule, grain: int) -> Schedule:
    """Every step cut into steps of at most ``grain`` chunks: the operations that a runtime makes of it.

    Raises InvalidSchedule if a step receives another number of chunks than is sent.
    """
    for _ in _transfers(schedule):
        pass
    if all((step.count or 1) <= grain for _, _, _, step in schedule.steps()):
        return schedule
    return _rewrite(schedule, lambda at, step: _pieces(step, _shares(step.count or 1, grain)))


def _shares(count: int, most: int) -> list[int]:
    """A number as few numbers of at most ``most``, all but the last as large as that."""
    whole, rest = divmod(count, most)
    return [most] * whole + [rest] * (rest > 0)


def _rewrite(schedule: Schedule, change: Callable[[At, Step], Sequence[Step]]) -> Schedule:
    """Put some steps in the place of each. The first waits for what it waited for; who waited for it, for the last."""
    ranks = []
    for r, rank in enumerate(schedule.ranks):
        made = [
            [change((r, b, s), step) for s, step in enumerate(block.steps)]
            for b, block in enumerate(rank.thread_blocks)
        ]
        last: list[list[int]] = []
        for block_made in made:
            last.append([])
            total = -1
            for steps in block_made:
                total += len(steps)
                last[-1].append(total)
        blocks = []
        for block, block_made in zip(rank.thread_blocks, made, strict=True):
            new: list[Step] = []
            for step, steps in zip(block.steps, block_made, strict=True):
                waits = tuple([Wait(w.thread_block, last[w.thread_block][w.step]) for w in step.waits])
                for i, part in enumerate(steps):
                    new.append(Step(part.srcs, part.dsts, () if i else waits, step.where))
            blocks.append(ThreadBlock(block.receives, block.sends, tuple(new)))
        ranks.append(Rank(rank.scratch, tuple(blocks)))
    return replace(schedule, ranks=tuple(ranks))


def _transfers(schedule: Schedule) -> Iterator[tuple[At, At]]:
    """Each send with its receive. Raises InvalidSchedule if they differ in length."""
    sent: dict[Connection, list[At]] = {}
    received: dict[Connection, list[At]] = {}
    for r, b, s, step in schedule.steps():
        for source in step.srcs:
            if type(source) is Receive:
                received.setdefault((source.peer, r, source.channel), []).append((r, b, s))
        for target in step.dsts:
            if type(target) is Send:
                sent.setdefault((r, target.peer, target.channel), []).append((r, b, s))
    for connection, sends in sent.items():
        for send, receive in zip(sends, received[connection], strict=True):
            there, here = (schedule.ranks[r].thread_blocks[b].steps[s] for r, b, s in (send, receive))
            if there.count != here.count:
                raise InvalidSchedule(
                    f"a step receives {here.count} chunks where rank {connection[0]} sends {there.count}: {there}",
                    schedule.step_name(*receive),
                )
            yield send, receive


# Opcodes --------------------------------------------------------------------------------------------------------


def _unfuse(schedule: Schedule, native: Callable[[Step], bool], rrc: bool) -> Schedule:
    """Every step that is not ``native`` as plain ones, among them rrc if ``rrc`` says so. What has to lie somewhere in
    between lies in scratch, which grows."""
    steps = [(r, b, step) for r, b, _, step in schedule.steps() if not native(step)]
    if not steps:
        return schedule
    width: Counter[tuple[int, int]] = Counter()  # scratch that a thread block needs for itself
    for r, b, step in steps:
        if _needs_scratch(step, rrc):
            width[r, b] = max(width[r, b], step.count or 1)
    base: dict[tuple[int, int], int] = {}
    scratch = [rank.scratch for rank in schedule.ranks]
    for r, b in sorted(width):
        base[r, b] = scratch[r]
        scratch[r] += width[r, b]

    def change(at: At, step: Step) -> Sequence[Step]:
        if native(step):
            return [step]
        rank, block, _ = at
        spare = Span(rank, "sc", base.get((rank, block), 0), step.count or 1)
        return [Step(srcs, dsts) for srcs, dsts in _plain(step, rrc, spare)]

    changed = _rewrite(schedule, change)
    return replace(
        changed, ranks=tuple([replace(rank, scratch=n) for rank, n in zip(changed.ranks, scratch, strict=True)])
    )


def _home(step: Step) -> Span | None:
    """Where a value can be put together: a destination that is one of what is added, or none of it."""
    local = [s for s in step.srcs if isinstance(s, Span)]
    stored = [d for d in step.dsts if isinstance(d, Span)]
    added = [d for d in stored if local.count(d) == 1]
    return next(iter([*added, *(d for d in stored if d not in local)]), None)


def _needs_scratch(step: Step, rrc: bool) -> bool:
    if len(step.srcs) == 1:
        return False
    home = _home(step)
    return home is None or (home in step.srcs and not rrc and any(isinstance(s, Receive) for s in step.srcs))


def _plain(step: Step, rrc: bool, spare: Span) -> Iterator[tuple[tuple[Source, ...], tuple[Destination, ...]]]:
    """A step as receives, copies, reductions and sends. ``spare`` is scratch of its own, if it needs some."""
    local = [s for s in step.srcs if isinstance(s, Span)]
    arrival = next((s for s in step.srcs if isinstance(s, Receive)), None)
    home = local[0] if len(step.srcs) == 1 and arrival is None else _home(step) or spare
    if home in local:
        local.remove(home)
        if arrival is not None and rrc:
            yield (arrival, home), (home,)
        elif arrival is not None:
            yield (arrival,), (spare,)
            local.insert(0, spare)
    elif arrival is not None:
        yield (arrival,), (home,)
    else:
        yield (local.pop(0),), (home,)
    for other in local:
        yield (home, other), (home,)
    for destination in sorted(step.dsts, key=lambda d: isinstance(d, Span)):
        if destination != home:
            yield (home,), (destination,)


# Spans ----------------------------------------------------------------------------------------------------------


def _split(schedule: Schedule) -> Schedule:
    """Contiguous spans of a bounded number of chunks. Both ends of a transfer are cut alike."""
    steps = list(schedule.steps())
    number = {(r, b, s): i for i, (r, b, s, _) in enumerate(steps)}
    parent = list(range(len(steps)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for send, receive in _transfers(schedule):
        parent[find(number[send])] = find(number[receive])
    scattered = {
        find(i)
        for i, (_, _, _, step) in enumerate(steps)
        if any(type(o) is Span and o.count > 1 and o.stride > 1 for o in (*step.srcs, *step.dsts))
    }
    if not scattered and all((step.count or 1) <= COUNT for _, _, _, step in steps):
        return schedule

    def change(at: At, step: Step) -> Sequence[Step]:
        count = step.count or 1
        if find(number[at]) in scattered:
            return _pieces(step, [1] * count)
        return _pieces(step, _shares(count, COUNT))

    return _rewrite(schedule, change)


def _pieces(step: Step, sizes: Sequence[int]) -> list[Step]:
    """A step cut into steps of so many chunks."""
    if len(sizes) == 1:
        return [step]
    found = []
    begin = 0
    for size in sizes:
        srcs = tuple([_piece(s, begin, size) if isinstance(s, Span) else s for s in step.srcs])
        dsts = tuple([_piece(d, begin, size) if isinstance(d, Span) else d for d in step.dsts])
        found.append(Step(srcs, dsts))
        begin += size
    return found


def _piece(span: Span, begin: int, size: int) -> Span:
    return Span(span.rank, span.buffer, span.index + begin * span.stride, size, span.stride if size > 1 else 1)


# Channels -------------------------------------------------------------------------------------------------------


def _renumber(schedule: Schedule, target: Target) -> Schedule:
    """Channels from 0 without gaps, as few as it takes if there are too many, one for both ends of a thread block."""
    connections = _connections(schedule)
    dense = {channel: i for i, channel in enumerate(sorted({channel for _, _, channel in connections}))}
    chosen = {connection: dense[connection[2]] for connection in connections}
    if not _fits(schedule, chosen):
        chosen = _recolour(schedule, target)
    if all(connection[2] == channel for connection, channel in chosen.items()):
        return schedule
    ranks = []
    for r, rank in enumerate(schedule.ranks):

        def receive(end: Receive, r: int = r) -> Receive:
            return Receive(end.peer, chosen[end.peer, r, end.channel])

        def send(end: Send, r: int = r) -> Send:
            return Send(end.peer, chosen[r, end.peer, end.channel])

        blocks = []
        for block in rank.thread_blocks:
            steps = [
                structs.replace(
                    step,
                    srcs=tuple([receive(s) if isinstance(s, Receive) else s for s in step.srcs]),
                    dsts=tuple([send(d) if isinstance(d, Send) else d for d in step.dsts]),
                )
                for step in block.steps
            ]
            blocks.append(ThreadBlock(tuple(map(receive, block.receives)), tuple(map(send, block.sends)), tuple(steps)))
        ranks.append(replace(rank, thread_blocks=tuple(blocks)))
    return replace(schedule, ranks=tuple(ranks))


def _connections(schedule: Schedule) -> list[Connection]:
    """In the order of ranks and thread blocks."""
    found: dict[Connection, None] = {}
    for r, rank in enumerate(schedule.ranks):
        for block in rank.thread_blocks:
            found.update(dict.fromkeys(_ends(r, block)))
    return list(found)


def _ends(rank: int, block: ThreadBlock) -> list[Connection]:
    """What a thread block receives from, then what it sends to."""
    return [(e.peer, rank, e.channel) for e in block.receives] + [(rank, e.peer, e.channel) for e in block.sends]


def _fits(schedule: Schedule, chosen: dict[Connection, int]) -> bool:
    crowd: Counter[tuple[int, int, bool]] = Counter()
    for r, rank in enumerate(schedule.ranks):
        for block in rank.thread_blocks:
            ends = _ends(r, block)
            if len({chosen[connection] for connection in ends}) > 1:
                return False
            crowd.update((r, chosen[connection], connection[0] == r) for connection in ends)
    return max(chosen.values(), default=0) < CHANNELS and max(crowd.values(), default=0) <= PER_CHANNEL


def _recolour(schedule: Schedule, target: Target) -> dict[Connection, int]:
    """The lowest channel that is free for each group of connections that thread blocks tie together."""
    group: dict[Connection, list[Connection]] = {connection: [connection] for connection in _connections(schedule)}
    for r, rank in enumerate(schedule.ranks):
        for block in rank.thread_blocks:
            ends = _ends(r, block)
            if len(ends) == 2 and group[ends[0]] is not group[ends[1]]:
                joined = group[ends[0]] + group[ends[1]]
                for connection in joined:
                    group[connection] = joined
    chosen: dict[Connection, int] = {}
    taken: set[Connection] = set()
    crowd: Counter[tuple[int, int, bool]] = Counter()
    for connection in _connections(schedule):
        if connection in chosen:
            continue
        together = group[connection]
        pairs = {(src, dst) for src, dst, _ in together}
        loads = Counter((r, r == src) for src, dst, _ in together for r in (src, dst))
        free = (
            c
            for c in range(CHANNELS)
            if all((*pair, c) not in taken for pair in pairs)
            and all(crowd[r, c, sends] + n <= PER_CHANNEL for (r, sends), n in loads.items())
        )
        channel = next(free, None) if len(pairs) == len(together) else None
        if channel is None:
            src, dst, _ = connection
            blocks = [b for b in schedule.ranks[src].thread_blocks if connection in _ends(src, b)]
            raise TargetLimit(
                target.name,
                f"there are {CHANNELS} channels, each for {PER_CHANNEL} thread blocks of a rank that send and "
                f"{PER_CHANNEL} that receive; none is left for what rank {src} sends to rank {dst}",
                places(step for block in blocks for step in block.steps),
            )
        for src, dst, old in together:
            chosen[src, dst, old] = channel
            taken.add((src, dst, channel))
        crowd.update({(r, channel, sends): n for (r, sends), n in loads.items()})
    return chosen


# Thread blocks --------------------------------------------------------------------------------------------------


def _awaited_first(schedule: Schedule) -> Schedule:
    """Thread blocks that others wait for before the rest, on ranks where one would have too high a number."""
    return replace(schedule, ranks=tuple([_rank_awaited_first(rank) for rank in schedule.ranks]))


def _rank_awaited_first(rank: Rank) -> Rank:
    awaited = {wait.thread_block for block in rank.thread_blocks for step in block.steps for wait in step.waits}
    if max(awaited, default=0) < AWAITED:
        return rank
    order = sorted(range(len(rank.thread_blocks)), key=lambda b: b not in awaited)
    number = {b: new for new, b in enumerate(order)}
    blocks = []
    for b in order:
        block = rank.thread_blocks[b]
        steps = [
            structs.replace(step, waits=tuple([Wait(number[w.thread_block], w.step) for w in step.waits]))
            for step in block.steps
        ]
        blocks.append(ThreadBlock(block.receives, block.sends, tuple(steps)))
    return replace(rank, thread_blocks=tuple(blocks))
