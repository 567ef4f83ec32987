"""Where the time of a large call goes: ``python benchmarks/steps.py [--collective NAME ...] [--bytes N] [--json F]``.

Two ranks call a collective by name on pairs of arrays that no cache holds, private ones and then shared ones, with
HOCKET_TRACE. A row is a kind of step, told by where its operands lie: its share of the time from the beginning of calls
to their end, the microseconds in a call of a rank, and how fast it loads and stores, as a multiple of what a core gets
when both copy by non-temporal stores, in the same run. What is no step is entering the call and waiting for the other
rank.
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
from typing import Any

import numpy as np
from machine import describe, title
from numpy.typing import NDArray
from peers import HERE, build, cache_bytes

import hocket
from hocket import Communicator
from hocket.runtime import trace
from hocket.tuning import NAMED

Event = dict[str, Any]

RANKS = 2
LAPS = 4
"""Over all pairs of arrays; the first is not counted."""


def calls(comm: Communicator, name: str, size: int, shared: bool, native: str) -> float:
    """Makes the calls. Returns the bytes a second that this rank loads and stores in a copy by non-temporal stores."""
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
            operands = (x,) if name == "broadcast" else (x, out)
            getattr(comm, name)(*operands)
        for x, out in zip(inputs, outputs, strict=True):
            elements = min(len(x), len(out)) // 16 * 16
            comm.barrier()
            begin = time.perf_counter()
            library.copy_non_temporal(
                ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(x.ctypes.data), None, ctypes.c_size_t(elements)
            )
            rates.append(2 * 4 * elements / (time.perf_counter() - begin))
    return statistics.median(rates)


def place(operand: str) -> str:
    """``<0.0`` and ``>0.0`` are a slot, ``in[1]`` is "in", and ``<0.0@0.in[1]`` is "their in"."""
    lies = re.fullmatch(r"[<>][\d.]+(?:@\d+\.(\w+))?|(\w+)", re.sub(r"\[.*\]", "", operand))
    assert lies is not None, operand
    there, here = lies.groups()
    return here or (f"their {there}" if there else "slot")


def kind(step: str) -> tuple[str, int]:
    """What is told of a step, such as ``1.0 rrcs in[1] <0.0 -> >0.1 out[1]``, and how many operands it has."""
    sources, destinations = ([place(operand) for operand in side.split()] for side in step.split(" ", 2)[2].split("->"))
    return f"{', '.join(sorted(sources))} -> {', '.join(sorted(destinations))}", len(sources) + len(destinations)


def profile(events: list[Event]) -> tuple[float, dict[str, tuple[float, float]]]:
    """Microseconds of a call, and of each kind of step the microseconds and the bytes loaded and stored in a call."""
    if any(name.startswith("dropped_") for event in events for name in event.get("args", {})):
        raise SystemExit("the trace had no room for so many steps: fewer --bytes")
    tracks = [e for e in events if e.get("cat") == "call" and e["tid"] == 0 and "args" in e and e["name"] != "barrier"]
    first = sorted(event["args"]["call"] for event in tracks)[len(tracks) // LAPS]
    spans = {(e["pid"], e["args"]["call"]): e["dur"] for e in tracks if e["args"]["call"] >= first}
    steps: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        about = event.get("args", {})
        if event.get("cat") != "step" or (event["pid"], about["call"]) not in spans or not about["moves"]:
            continue
        name, operands = kind(about["step"])
        steps[name][0] += event["dur"] / len(spans)
        steps[name][1] += operands * about["bytes"] / len(spans)
    return statistics.fmean(spans.values()), {name: (us, moved) for name, (us, moved) in steps.items()}


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
                    f"a copy {RANKS * copy / 1e9:.0f} GB/s"
                )
                waits = whole - sum(us for us, _ in steps.values())
                for label, (us, moved) in (*steps.items(), ("waits", (waits, 0.0))):
                    rate = moved / us * 1e6 / copy
                    row = {"collective": name, "bytes": given.bytes, "shared": shared, "call_us": whole}
                    rows.append(row | {"step": label, "us": us, "copies": rate})
                    print(f"  {label:32}{us / whole:8.0%}{us:10.0f} us" + (f"{rate:8.2f}" if moved else ""))
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
