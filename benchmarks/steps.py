"""Where the time of a large call goes: ``python benchmarks/steps.py [--collective NAME ...] [--bytes N] [--json FILE]``.

Two ranks call a collective by name on pairs of arrays that no cache holds, on private arrays and on shared ones, with
HOCKET_TRACE. A row is a kind of step, told by where its operands lie: its part of the time between the beginning of
calls and their end, the microseconds a call, and the bytes that it loads and stores in a second, in units of a copy past
the caches by both cores in the same run, which loads and stores no more than an array each. What is no step is waiting,
for the other rank to come or to go on.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from machine import describe, title
from numpy.typing import NDArray
from peers import HERE, build, cache_bytes

import hocket
from hocket import Communicator
from hocket.runtime import trace
from hocket.tuning import NAMED

RANKS = 2
LAPS = 4
"""Over all pairs of arrays; the first is not counted."""


def calls(comm: Communicator, name: str, size: int, shared: bool, native: str) -> float:
    """Makes the calls. Returns the bytes a second that this rank loads and stores in a copy past the caches."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})
    x_size = size // RANKS if name in ("all_gather", "gather") else size
    out_size = size // RANKS if name in ("reduce_scatter", "scatter") else size
    count = 4 * cache_bytes() // size + 2

    def arrays(nbytes: int) -> list[NDArray[np.float32]]:
        made = [(comm.empty if shared else np.empty)(nbytes // 4 + 16, np.float32) for _ in range(count)]
        return [array[-array.ctypes.data % 64 // 4 :][: nbytes // 4] for array in made]

    inputs, outputs = arrays(x_size), arrays(out_size)
    for array in (*inputs, *outputs):
        array.fill(1)
    library, rates = ctypes.PyDLL(native), []
    for _ in range(LAPS):
        for x, out in zip(inputs, outputs, strict=True):
            comm.barrier()
            getattr(comm, name)(x, *[out] * (name != "broadcast"))
        for x, out in zip(inputs, outputs, strict=True):
            elements = min(len(x), len(out)) // 16 * 16
            comm.barrier()
            begin = time.perf_counter()
            library.copy_non_temporal(
                ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(x.ctypes.data), None, ctypes.c_size_t(elements)
            )
            rates.append(2 * 4 * elements / (time.perf_counter() - begin))
    return statistics.median(rates)


def kind(step: str) -> str:
    """``1.0 rrcs in[1] <0.0 -> >0.1 out[1]`` is ``in, slot -> slot, out``; what lies with the peer is "theirs"."""
    sources, destinations = (
        [
            "their " + part[0]
            if (part := re.findall(r"@\d+\.(\w+)", operand))
            else "slot"
            if "." in operand
            else operand
            for operand in re.sub(r"\[[^]]*\]", "", side).split()
        ]
        for side in step.split(maxsplit=2)[2].split("->")
    )
    return f"{', '.join(sorted(sources))} -> {', '.join(sorted(destinations))}"


def profile(events: list[dict[str, object]]) -> tuple[float, dict[str, tuple[float, float]]]:
    """Microseconds of a call, and of each kind of step the microseconds and the bytes loaded and stored in a call."""
    tracks = [e for e in events if e.get("cat") == "call" and e["tid"] == 0 and "args" in e and e["name"] != "barrier"]
    spans: dict[tuple[int, int], float] = {(e["pid"], e["args"]["call"]): e["dur"] for e in tracks}  # type: ignore
    first = sorted(call for _, call in spans)[len(spans) // LAPS]
    spans = {key: dur for key, dur in spans.items() if key[1] >= first}
    steps: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        about = event.get("args", {})
        if event.get("cat") != "step" or (event["pid"], about["call"]) not in spans or not about["moves"]:  # type: ignore
            continue
        name = kind(about["step"])  # type: ignore
        steps[name][0] += event["dur"]  # type: ignore
        steps[name][1] += about["bytes"] * len(re.findall(r"\w+", name.replace("their ", "")))  # type: ignore
    return statistics.fmean(spans.values()), {
        name: (us / len(spans), moved / len(spans)) for name, (us, moved) in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=NAMED, nargs="+", default=["all_reduce"])
    parser.add_argument("--bytes", type=int, default=32 << 20, help="of the larger array of a rank")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    machine = describe()
    print(title(machine))
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        native, file = Path(directory) / "native.so", Path(directory) / "trace.json"
        build(HERE / "peers_native.cpp", native)
        os.environ[trace.VARIABLE] = str(file)
        for name in given.collective:
            for shared in (False, True):
                rates = hocket.spawn(calls, RANKS, (name, given.bytes, shared, str(native)), threads=1)
                copy = statistics.fmean(rates)
                whole, steps = profile(json.loads(file.read_text()))
                print(
                    f"{name}, {given.bytes} bytes, {'shared' if shared else 'private'} arrays: {whole:.0f} us a call, "
                    f"a copy {2 * copy / 1e9:.0f} GB/s"
                )
                waits = whole - sum(us for us, _ in steps.values())
                for label, (us, moved) in (*steps.items(), ("waits", (waits, 0.0))):
                    rate = moved / us * 1e6 / copy
                    rows.append({"collective": name, "shared": shared, "step": label, "us": us, "copies": rate})
                    print(f"  {label:32}{us / whole:8.0%}{us:10.0f} us" + (f"{rate:8.2f}" if moved else ""))
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
