"""Training steps of examples/train_ddp.py on Gloo and on hocket: ``python benchmarks/torch_training.py``.

The same script, started in turn on Gloo, with HOCKET=1, and with gradients in shared memory besides. "communication" is
what the backward pass takes more than one whose gradients stay where they are, of the same step. Medians over the steps
but the first three; ratios to Gloo's of the same round. Loss curves are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from machine import describe, title

SCRIPT = Path(__file__).parent.parent / "examples" / "train_ddp.py"
WARMUPS = 3
CONTENDERS: dict[str, tuple[dict[str, str], list[str]]] = {
    "gloo": ({}, []),
    "hocket": ({"HOCKET": "1"}, []),
    "shared": ({"HOCKET": "1"}, ["--prepare", "hocket.torch:share_gradients"]),
}


def launch(contender: str, given: argparse.Namespace, model: str) -> dict[str, object]:
    """What rank 0 of a job wrote."""
    variables, options = CONTENDERS[contender]
    with tempfile.TemporaryDirectory() as work:
        found = Path(work) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.ranks)]
        command += [str(SCRIPT), "--model", model, "--steps", str(given.steps), "--compute", "--json", str(found)]
        command += options + (["--views"] if given.views else [])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        # While Python ends, after the file is written, threads of Gloo may abort the process (torch 2.13).
        subprocess.run(command, env=environment, check=contender != "gloo", stdout=subprocess.DEVNULL)
        return dict(json.loads(found.read_text()))


def milliseconds(result: dict[str, object]) -> tuple[float, float]:
    """Of a step, and of the communication in it."""
    seconds = result["seconds"]
    assert isinstance(seconds, dict)
    step, backward, compute = (seconds[what][WARMUPS:] for what in ("step", "backward", "compute"))
    hidden = [b - c for b, c in zip(backward, compute, strict=True)]
    return 1e3 * median(step), 1e3 * median(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["small", "resnet50", "vgg16"])
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", action="store_true", help="gradients are views of DDP's buckets")
    given = parser.parse_args()
    print(title(describe()), f"{given.ranks} ranks, views {given.views}", flush=True)
    print(
        f"{'model':>10} {'':15}{'step ms':>9}{'communication ms':>18}  to Gloo's, by round   furthest loss", flush=True
    )
    for model in given.model:
        took: dict[str, list[tuple[float, float]]] = {contender: [] for contender in given.contender}
        losses: dict[str, list[float]] = {}
        for number in range(given.rounds):
            for contender in given.contender[:: -1 if number % 2 else 1]:
                result = launch(contender, given, model)
                weights = result["weights"]
                if not isinstance(weights, list) or len(set(weights)) != 1:
                    sys.exit(f"{contender}: the ranks' weights differ")
                took[contender].append(milliseconds(result))
                losses[contender] = list(result["losses"]) if isinstance(result["losses"], list) else []
        for contender, rounds in took.items():
            step, communication = (median(column) for column in zip(*rounds, strict=True))
            pairs = zip(rounds, took[given.contender[0]], strict=True)
            ratios = " ".join(f"{ours[1] / theirs[1]:.2f}" for ours, theirs in pairs)
            far = max(abs(a - b) for a, b in zip(losses[contender], losses[given.contender[0]], strict=True))
            print(f"{model:>10} {contender:15}{step:9.1f}{communication:18.1f}  {ratios:21} {far:.1e}", flush=True)


if __name__ == "__main__":
    main()
