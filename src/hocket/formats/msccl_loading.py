"""What happens when a runtime loads a file: what it refuses, and what the file costs or spoils where it does not.

The rules are those of ``msccl_targets``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hocket.collectives import Broadcast, Collective, Gather, Reduce, Scatter
from hocket.errors import TargetLimit, Where
from hocket.formats.msccl_document import Document, XmlBlock, XmlGpu, XmlStep, joins, sizes
from hocket.formats.msccl_legal import places
from hocket.formats.msccl_targets import (
    AWAITED,
    CHANNELS,
    CHILDREN,
    DEFAULT_BYTES,
    FUSED_REDUCES,
    NODES,
    OFFSET,
    PER_CHANNEL,
    READS,
    RECEIVES,
    SCRATCH,
    SENDS,
    UNBOUNDED,
    WRITES,
    Target,
)


def remarks(document: Document, collective: Collective, target: Target) -> Iterator[str]:
    """What to know of a file that ``target`` loads: calls that it gets wrong, and memory that it takes."""
    root = only_root(collective, document.coll)
    if root is not None:
        yield f"it uses the file for calls of any root; only those of root {root} come out right"
    if not _scratch_chunks(document):
        return
    _, high = sizes(document)
    if target.reserves:
        scratch = show_bytes(_scratch_bytes(document, _too_many_bytes(document)))
        yield f"it allocates {scratch} of scratch on each GPU for a communicator"
    elif high is None:
        share = _scratch_chunks(document) / document.loop_chunks
        yield f"it allocates {share:.3g} times the bytes of a call for scratch on each GPU"
    else:
        yield f"it allocates up to {show_bytes(_scratch_bytes(document, high))} of scratch on each GPU for a call"


def only_root(collective: Collective, word: str) -> int | None:
    """The root whose calls a file of a rooted collective does right. It is loaded for all: no runtime compares a call's
    root with that of a file, which does not say it. A ``custom`` one is called by its number, so nobody mistakes it."""
    if word == "custom" or not isinstance(collective, (Broadcast, Reduce, Gather, Scatter)):
        return None
    return collective.root


def _scratch_chunks(document: Document) -> int:
    """Of the GPU that has most."""
    return max(gpu.chunks["s"] for gpu in document.gpus)


def _scratch_bytes(document: Document, most: int) -> int:
    return most * _scratch_chunks(document) // document.loop_chunks


def _too_many_bytes(document: Document) -> int:
    """maxBytes, where it is exclusive."""
    return DEFAULT_BYTES if document.max_bytes is None else document.max_bytes


def show_bytes(n: int) -> str:
    """Bytes as the command line takes them: 1.5 GB, where K = 1024."""
    unit = min(max(n.bit_length() - 1, 0) // 10, 6)
    return f"{n / 1024**unit:.4g} {('bytes', 'KB', 'MB', 'GB', 'TB', 'PB', 'EB')[unit]}"


# ---------------------------------------------------------------------------------------------------------------


def refusals(document: Document, target: Target) -> Iterator[TargetLimit]:
    """All that a runtime would refuse in a file, or read otherwise."""
    yield from _of_document(document, target)
    for r, gpu in enumerate(document.gpus):
        yield from _of_gpu(document, r, gpu, target)
        for b, block in enumerate(gpu.blocks):
            yield from _of_block(r, b, block, target)
            # One of each block is enough: the rest is often the same.
            found = next((no for step in block.steps for no in _of_step(gpu, block, step, target)), None)
            if found is not None:
                yield found


def _no(target: Target, reason: str, *where: Where | None) -> TargetLimit:
    return TargetLimit(target.name, reason, tuple(w for w in where if w is not None))


def _of_document(d: Document, target: Target) -> Iterator[TargetLimit]:
    if d.misread is not None:
        yield _no(target, d.misread[1], d.misread[0])
    if d.coll not in target.words.values():
        yield _no(target, f"it has no collective {d.coll}", d.where)
    if d.coll in target.apart and d.inplace:
        yield _no(target, f"it has no calls of {d.coll} in place", d.where)
    if target.both_places and None in (d.outofplace, d.min_bytes, d.max_bytes):
        needed = {"outofplace": d.outofplace, "minBytes": d.min_bytes, "maxBytes": d.max_bytes}
        missing = [key for key, value in needed.items() if value is None]
        yield _no(target, f"it demands the attribute{'s' * (len(missing) > 1)} {', '.join(missing)}", d.where)
    low, high = d.min_bytes or 0, _too_many_bytes(d)
    if target.exclusive and high <= low:
        yield _no(target, f"it takes calls of {low} bytes or more, but fewer than maxBytes={high}: none", d.where)
    if target.reserves and _scratch_bytes(d, high) > SCRATCH:
        wanted = show_bytes(_scratch_bytes(d, high))
        yield _no(target, f"it would allocate {wanted} of scratch on a GPU, for calls of maxBytes={high}", d.where)
    if target.warp is not None and d.threads is not None and d.threads % target.warp:
        yield _no(target, f"nthreads={d.threads} is no multiple of {target.warp}", d.where)
    if d.channels > CHANNELS:
        yield _no(target, f"at most {CHANNELS} channels; there are {d.channels}", d.where)
    if len(d.gpus) > CHILDREN:
        yield _no(target, f"at most {CHILDREN} ranks; there are {len(d.gpus)}", d.where)


def _of_gpu(d: Document, r: int, gpu: XmlGpu, target: Target) -> Iterator[TargetLimit]:
    lines = places([step for block in gpu.blocks for step in block.steps])
    if len(gpu.blocks) > target.thread_blocks:
        yield _no(target, f"at most {target.thread_blocks} thread blocks; rank {r} has {len(gpu.blocks)}", *lines)
    if target.shares is not None:
        for key in "io":
            ranks = len(d.gpus) if target.shares.get(d.coll) == key else 1
            if gpu.chunks[key] and gpu.chunks[key] * ranks != d.loop_chunks:
                times = f", times {ranks} ranks," * (ranks > 1)
                reason = (
                    f"rank {r} has {key}_chunks={gpu.chunks[key]}, which{times} is not nchunksperloop={d.loop_chunks}"
                )
                yield _no(target, reason, d.where)
    nodes = 1 + len(d.gpus) + sum(1 + len(block.steps) for block in gpu.blocks)
    if nodes > NODES:
        yield _no(target, f"at most {NODES} elements for a rank; rank {r} has {nodes}", *lines)
    crowd: Counter[tuple[str, int]] = Counter()
    for block in gpu.blocks:
        crowd.update(
            (way, block.channel) for way, peer in (("send", block.send), ("recv", block.recv)) if peer is not None
        )
    for (way, channel), n in crowd.items():
        if n > PER_CHANNEL:
            found = f"rank {r} has {n} on {channel}"
            yield _no(target, f"at most {PER_CHANNEL} thread blocks that {way} on a channel; {found}", *lines)


def _of_block(r: int, b: int, block: XmlBlock, target: Target) -> Iterator[TargetLimit]:
    if block.channel < 0:
        yield _no(target, f"chan={block.channel}: a thread block without connections has a channel, too", block.where)
    if len(block.steps) > target.steps:
        found = f"rank {r}, thread block {b} has {len(block.steps)}"
        yield _no(target, f"at most {target.steps} steps in a thread block; {found}", *places(block.steps))
    run = _longest_reduction(block)
    if run > FUSED_REDUCES:
        reason = f"it does at most {FUSED_REDUCES} reductions into one place as one; here are {run}"
        yield _no(target, f"{reason}, and none but the last has hasdep=1", *places(block.steps))


def _longest_reduction(block: XmlBlock) -> int:
    """The most reductions that a runtime joins to one. It ends one, too, where it has counted FUSED_REDUCES of the
    whole thread block, but only there."""
    longest = run = count = 0
    before: XmlStep | None = None
    for step in block.steps:
        if step.type == "re":
            joined = before is not None and joins(before, step) and count != FUSED_REDUCES
            run = run + 1 if joined else 1
            count += 1
            longest = max(longest, run)
        before = step
    return longest


def _of_step(gpu: XmlGpu, block: XmlBlock, step: XmlStep, target: Target) -> Iterator[TargetLimit]:
    """Steps with cnt=0 are no exception."""
    at = step.where[:1]
    if step.depends is not None and step.depends[0] >= AWAITED:
        yield _no(target, f"only thread blocks 0 to {AWAITED - 1} can be waited for; here is {step.depends[0]}", *at)
    far = max(step.src[1], step.dst[1])
    if far > OFFSET:
        yield _no(target, f"at most {OFFSET + 1} chunks in a buffer; here is chunk {far}", *at)
    if step.type == "nop":
        return
    if step.type not in target.opcodes:
        yield _no(target, f"its default build does not do {step.type}", *at)
    if step.type in SENDS and block.send is None:
        yield _no(target, f"{step.type} in a thread block with send=-1", *at)
    if step.type in RECEIVES and block.recv is None:
        yield _no(target, f"{step.type} in a thread block with recv=-1", *at)
    for kind, (key, offset) in ((READS, step.src), (WRITES, step.dst)):
        if step.type in kind - UNBOUNDED and offset >= gpu.chunks[key]:
            yield _no(target, f"chunk {offset} is outside of {key}_chunks={gpu.chunks[key]}", *at)
