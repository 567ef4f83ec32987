"""Every code block of the documents runs, in order, in one directory for each document; shown output is compared.

A ```python block is run as a script, under the name that its first line gives (``# ring.py``); one for msccl-tools is
only written, for ``hocket msccl``, and so is a ```toml block. In a ```console block each ``$ hocket ...`` is run, also
with variables before it; ``...`` in its output stands for anything. Examples run as scripts. What needs torch runs
where it is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]
HOCKET = [sys.executable, "-c", "from hocket.cli import main; main()"]

_BLOCK = re.compile(r"^```(python|console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")


def run(
    command: list[str], directory: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", **(variables or {})}
    return subprocess.run(
        command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a console block and what they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield shlex.split(line), output


def pattern(shown: str) -> str:
    """A shown output as a regular expression."""
    return ".*".join(map(re.escape, shown.rstrip().split("...")))


def test_a_shown_output_stands_for_what_it_says() -> None:
    assert re.fullmatch(pattern("a ... c\nd\n"), "a b c\nd")
    assert not re.fullmatch(pattern("a (b)"), "a b")
    assert list(commands("$ hocket check 'a b'\nout\n\nmore\n$ hocket demo\n")) == [
        (["hocket", "check", "a b"], "out\n\nmore\n"),
        (["hocket", "demo"], ""),
    ]


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.campaign) for path in DOCUMENTS],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_document(document: Path, tmp_path: Path) -> None:
    for number, (kind, block) in enumerate(_BLOCK.findall(document.read_text())):
        if kind != "console":
            named = _NAME.match(block)
            path = tmp_path / (named[1] if named else f"block_{number}.py")
            path.write_text(block)
            if kind == "toml" or "from msccl" in block:
                continue
            if "import torch" in block and importlib.util.find_spec("torch") is None:
                pytest.skip("torch is not installed")
            done = run([sys.executable, path.name], tmp_path)
            assert done.returncode == 0, f"{block}\n{done.stdout}"
            continue
        for words, shown in commands(block):
            variables = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
            command, *arguments = words[len(variables) :]
            assert command == "hocket", f"only hocket is run here, not {words}"
            done = run([*HOCKET, *arguments], tmp_path, variables)
            lines = "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())
            assert re.fullmatch(pattern(shown), lines), f"{shlex.join(words)} printed\n{lines}\nnot\n{shown}"


def test_readme_installs_runs_and_tests_in_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    for command in ("pip install . && hocket demo", "pip install '.[test]' && pytest"):
        assert f"\n{command}\n" in readme
        assert f"({command})" in script


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize(
    "example",
    [
        path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "train_ddp.py"
    ],  # tests/integrations/torch
    ids=lambda path: path.name,
)
def test_example(example: Path, tmp_path: Path) -> None:
    done = run([sys.executable, str(example)], tmp_path)
    assert done.returncode == 0, done.stdout
    assert not re.search("False|Traceback", done.stdout)


def test_training_example_on_several_ranks(tmp_path: Path) -> None:
    done = run([*HOCKET, "launch", "-n", "3", str(ROOT / "examples" / "train_step.py")], tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(r"\[0\] ranks: 3, largest error: \d\.\de-\d\d\n", done.stdout)
