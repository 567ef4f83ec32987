"""The public workflows and hooks, as far as they can be judged without their machines: they parse, and agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install '.[docs]'")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_of_a_workflow_has_a_machine_and_steps(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML reads the key `on` as true
    for job in workflow["jobs"].values():
        assert "runs-on" in job
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_every_version_of_python_is_tested_and_has_a_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheels = project["tool"]["cibuildwheel"]["build"]
    assert wheels == [f"cp{version.replace('.', '')}-*" for version in PYTHONS]
    assert project["project"]["requires-python"] == f">={PYTHONS[0]}"
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    alone = [step["with"]["python-version"] for step in jobs["everything"]["steps"] if "with" in step]
    assert sorted(alone + jobs["pytest"]["strategy"]["matrix"]["python"]) == PYTHONS


def test_hooks_run_what_the_tests_run() -> None:
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert [hook["id"] for hook in local["hooks"]] == ["ruff-check", "ruff-format", "mypy", "clang-format"]
