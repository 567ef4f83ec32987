"""hocket msccl: a script for msccl-tools, run unchanged, and every program of it proven."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hocket.cli.console import print_error, say
from hocket.cli.export import Wishes
from hocket.cli.target import parse_size
from hocket.errors import HocketError, UsageError, UserCodeFailed, printable
from hocket.formats.msccl_targets import TARGETS
from hocket.functions import user_code
from hocket.integrations.msccl.program import MSCCLProgram
from hocket.integrations.msccl.script import run_script
from hocket.verify import Contract, Proof


def play(
    script: Path,
    arguments: Sequence[str],
    target: str,
    min_bytes: str,
    max_bytes: str | None,
    reproducible: Contract | None,
) -> bool:
    """Run the script; standard error tells what came of its programs. Whether all of them are right."""
    if not script.is_file():
        raise UsageError(f"there is no file {script}")
    low, high = parse_size(min_bytes), None if max_bytes is None else parse_size(max_bytes)
    wishes = Wishes(target, min_bytes=low, max_bytes=high, reproducible=reproducible)
    console = Console(stderr=True, highlight=False)
    note = TARGETS[target].note
    if note is not None:
        say(console, f"note: {note}")
    try:
        with user_code(script, f"running {script.name}"):
            finished = run_script(script, arguments, wishes.write, reproducible)
    except UserCodeFailed as error:  # nothing is wrong with the command line
        print_error(error, console)
        return False
    if not finished:
        raise UsageError(f"{script} made no program", "a program is finished at the end of `with MSCCLProgram(...):`")
    judged = [_judge(program, console) for program in finished]
    return all(judged)


def _judge(program: MSCCLProgram, console: Console) -> bool:
    if program.refused:
        say(console, f"{program.name}: refused by Check()", "red")
        return False
    try:
        schedule = program.schedule()
    except HocketError as error:
        print_error(error, console)
        return False
    proof = Proof.of(schedule)
    collective = schedule.collective.name + ", in place" * schedule.collective.inplace
    said = Text.assemble((printable(f"{program.name}: {proof}"), "green"), printable(f": {collective}"))
    console.print(said, soft_wrap=True)
    return True
