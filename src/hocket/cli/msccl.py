"""hocket msccl: a script for msccl-tools, run unchanged, and every program of it proven."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hocket.cli.export import Wishes
from hocket.cli.target import UsageError, UserCodeFailed, parse_size, user_code
from hocket.cli.verdicts import print_error
from hocket.errors import HocketError
from hocket.formats.msccl_targets import TARGETS
from hocket.integrations.msccl.program import MSCCLProgram
from hocket.integrations.msccl.script import run_script
from hocket.verify import Proof


def play(script: Path, arguments: Sequence[str], target: str, min_bytes: str, max_bytes: str | None) -> bool:
    """Run the script; standard error tells what came of its programs. Whether all of them are right."""
    if not script.is_file():
        raise UsageError(f"there is no file {script}")
    low, high = parse_size(min_bytes), None if max_bytes is None else parse_size(max_bytes)
    wishes = Wishes(target, min_bytes=low, max_bytes=high)
    console = Console(stderr=True, highlight=False)
    note = TARGETS[target].note
    if note is not None:
        console.print(f"note: {note}", soft_wrap=True)
    try:
        with user_code(script, f"running {script.name}"):
            finished = run_script(script, arguments, wishes.write)
    except UserCodeFailed as error:  # nothing is wrong with the command line
        print_error(error, console)
        return False
    judged = [_judge(program, console) for program in finished]
    return all(judged)


def _judge(program: MSCCLProgram, console: Console) -> bool:
    if program.refused:
        console.print(Text(f"{program.name}: refused by Check()", "red"), soft_wrap=True)
        return False
    try:
        schedule = program.schedule()
    except HocketError as error:
        print_error(error, console)
        return False
    proof = Proof.of(schedule)
    collective = schedule.collective.name + ", in place" * schedule.collective.inplace
    said = Text.assemble((f"{program.name}: {proof}", "green"), f": {collective}")
    console.print(said, soft_wrap=True)
    return True
