"""A report of ``hocket check`` as machines read it: one function for each format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import hocket
from hocket.cli.result import Report, Result, Taken, Verdict, place_of
from hocket.errors import LINES, Diagnostic, Label, Location, Severity, printable, render

VERSION = 1
"""Of the JSON document. It grows when a field goes or changes its meaning, not when one is added."""


class Format(StrEnum):
    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"
    junit = "junit"


# ---------------------------------------------------------------------------------------------------------------
# JSON


def as_json(report: Report) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "hocket": hocket.__version__,
            "verdict": report.verdict,
            "results": [_result(result) for result in report.results],
            "sizes": None if report.sizes is None else [_taken(row) for row in report.sizes],
            "skipped": [skipped.why for skipped in report.skipped],
            "error": None if report.error is None else _diagnostic(report.error.diagnostic(), "error", None),
        },
        indent=2,
    )


def _taken(row: Taken) -> dict[str, object]:
    item = row.item
    return {
        "collective": row.collective,
        "root": row.root,
        "ranks": row.ranks,
        "least": row.sizes.least,
        "most": row.sizes.most,
        "takes": None if item is None else {"target": item.named, "file": item.where.path, "line": item.where.line},
    }


def _result(result: Result) -> dict[str, object]:
    error = result.error
    return {
        "target": result.target,
        "file": _path(result.file),
        "parameters": dict(result.parameters),
        "verdict": result.verdict,
        "seconds": round(result.seconds, 6),
        "facts": None if result.facts is None else asdict(result.facts) | {"sums": result.sums},
        "refusals": result.refusals,
        "remarks": result.remarks,
        "warnings": [_diagnostic(warning, "warning", result.file) for warning in result.warnings],
        "error": None if error is None else _diagnostic(error.diagnostic(), "error", result.file),
    }


def _diagnostic(diagnostic: Diagnostic, severity: Severity, file: str | None) -> dict[str, object]:
    at = place_of(diagnostic)
    place = {"file": _path(file), "line": None, "column": None, "end_column": None} if at is None else _place(at)
    return {
        "code": diagnostic.code,
        "message": diagnostic.message,
        **place,
        "labels": [_label(label) for label in diagnostic.labels],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "text": render(diagnostic, severity),
    }


def _label(label: Label) -> dict[str, object]:
    at = label.where.resolve()
    return {**_place(at), "text": label.text, "primary": label.primary, "source": at.source}


def _place(at: Location) -> dict[str, object]:
    column, end = at.span
    return {"file": at.path, "line": at.line, "column": column, "end_column": end}


def _path(file: str | None) -> str | None:
    return None if file is None else Location(file, 1).path


def _message(diagnostic: Diagnostic) -> str:
    """What a diagnostic says beside its place."""
    more = [f"note: {note}" for note in diagnostic.notes]
    more += [] if diagnostic.help is None else [f"help: {diagnostic.help}"]
    return "\n".join([printable(diagnostic.message), *(printable(part, LINES) for part in more)])


def _said(report: Report) -> list[tuple[Severity, Diagnostic, Result | None]]:
    """All errors and warnings, with what they are about."""
    found: list[tuple[Severity, Diagnostic, Result | None]] = []
    if report.error is not None:
        found.append(("error", report.error.diagnostic(), None))
    for result in report.results:
        if result.error is not None:
            found.append(("error", result.error.diagnostic(), result))
        found += [("warning", warning, result) for warning in result.warnings]
    return found


# ---------------------------------------------------------------------------------------------------------------
# GitHub's workflow commands


def as_github(report: Report) -> str:
    """An annotation for each error and warning, and the number of what is proven."""
    lines = []
    for severity, diagnostic, result in _said(report):
        at = place_of(diagnostic)
        properties: dict[str, object] = {}
        if at is not None and at.is_file:
            properties |= {"file": at.path, "line": at.line, "col": at.span[0]}
            properties |= {} if at.span[1] is None else {"endColumn": at.span[1]}
        elif result is not None and result.file is not None:
            properties["file"] = _path(result.file)
        about = diagnostic.code if result is None else f"{diagnostic.code}: {result.name}"
        properties["title"] = about
        words = ",".join(f"{key}={_escaped(printable(str(value)), ':,')}" for key, value in properties.items())
        lines.append(f"::{severity} {words}::{_escaped(_message(diagnostic))}")
    if report.error is None:
        proven = sum(result.error is None for result in report.results)
        lines.append(f"{proven} of {len(report.results)} proven")
    return "\n".join(lines)


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:  # the sign of the escapes first
        text = text.replace(character, f"%{ord(character):02X}")
    return printable(text)


# ---------------------------------------------------------------------------------------------------------------
# SARIF


def as_sarif(report: Report) -> str:
    said = _said(report)
    codes = list(dict.fromkeys(diagnostic.code for _, diagnostic, result in said if result is not None))
    results = [
        _sarif_result(severity, diagnostic, result) | {"ruleIndex": codes.index(diagnostic.code)}
        for severity, diagnostic, result in said
        if result is not None
    ]
    notifications = [
        {"level": severity, "message": {"text": _message(diagnostic)}, "descriptor": {"id": diagnostic.code}}
        for severity, diagnostic, result in said
        if result is None
    ]
    driver = {"name": "hocket", "version": hocket.__version__, "rules": [{"id": code} for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": report.error is None,
                "exitCode": report.verdict.exit_code,
                "toolConfigurationNotifications": notifications,
            }
        ],
        "results": results,
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_result(severity: Severity, diagnostic: Diagnostic, result: Result) -> dict[str, object]:
    main = place_of(diagnostic) or Location(result.file or result.target, 1)  # GitHub refuses a result without one
    others = [(at, label) for label in diagnostic.labels if (at := label.where.resolve()).source and at != main]
    return {
        "ruleId": diagnostic.code,
        "level": severity,
        "message": {"text": _message(diagnostic)},
        "locations": [_sarif_location(main)],
        "relatedLocations": [
            _sarif_location(at) | {"message": {"text": printable(label.text)}} for at, label in others
        ],
        "properties": {"target": result.name, "verdict": result.verdict},
    }


_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def _sarif_location(at: Location) -> dict[str, object]:
    path = at.path
    uri = Path(path).as_uri() if Path(path).is_absolute() else quote(path, errors="replace")
    column, end = at.span
    region: dict[str, object] = {"startLine": at.line}
    if at.source is not None:
        region |= {"startColumn": column, "snippet": {"text": printable(at.source, LINES)}}
        region |= {} if end is None else {"endColumn": end}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


# ---------------------------------------------------------------------------------------------------------------
# JUnit's XML


def as_junit(report: Report) -> str:
    """A test case for each result: a failure where it is refuted or refused, an error where it could not be judged."""
    results = report.results or (Result("hocket check", None, error=report.error),)
    verdicts = [result.verdict for result in results]
    counts = {
        "tests": str(len(results)),
        "failures": str(sum(v in (Verdict.REFUTED, Verdict.REFUSED) for v in verdicts)),
        "errors": str(verdicts.count(Verdict.INVALID)),
        "skipped": "0",
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    suites = ElementTree.Element("testsuites", {"name": "hocket", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "hocket check", **counts})
    for result in results:
        words = {"classname": "hocket.check", "name": printable(result.name), "time": f"{result.seconds:.3f}"}
        if result.file is not None:
            words["file"] = printable(_path(result.file) or "")
        case = ElementTree.SubElement(suite, "testcase", words)
        if result.error is not None:
            said = result.error.diagnostic()
            kind = "error" if result.verdict is Verdict.INVALID else "failure"
            words = {"type": said.code, "message": printable(said.message)}
            ElementTree.SubElement(case, kind, words).text = render(said)
        if result.warnings:
            out = ElementTree.SubElement(case, "system-out")
            out.text = "\n".join(render(warning, "warning") for warning in result.warnings)
    ElementTree.indent(suites)
    text: bytes = ElementTree.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return text.decode()


MACHINES: Mapping[Format, Callable[[Report], str]] = {
    Format.json: as_json,
    Format.github: as_github,
    Format.sarif: as_sarif,
    Format.junit: as_junit,
}
"""All formats but text."""
