"""Public reports that look like a failure: somebody may have met the same fault before.

Theory of operation. `reports.toml` holds faults of real engines, each with the properties that it
makes fall, the rules that it goes against, the fields in which it shows, and what has to happen on
the way (marks). `similar` is a function of the clues that a failure leaves: a report must share a
property or a field with it, or a rule and a mark. What it shares is weighed, and that nothing has
happened which it needs counts against it; of those that weigh most, the ones that claim least
beside it are the most specific. A likeness is no proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from attrs import frozen

from servecheck.lockstep.register import Table, tables
from servecheck.marks import Mark, marks_of
from servecheck.trace.lasso import WATCHED
from servespec.actions import Action
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.properties import step_of
from servespec.rules import RULES

REPORTS = Path(__file__).with_name("reports.toml")
"""The reports that come with servecheck."""

NEEDED = ("id", "project", "url", "summary", "properties")
OPTIONAL = ("rules", "fields", "marks")
URL = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/((issues|pull)/[0-9]+|commit/[0-9a-f]+)")

MOST = 3
"""Reports that are named."""
PROPERTY, FIELD, RULE = 4, 4, 3
"""How much it weighs to share one."""
MARK, MARKS = 2, 2
"""How much it weighs to share a mark, and how many count."""
ABSENT = 2
"""How much less a report weighs of whose marks none was met."""
NEAR = 2
"""How much less than the best another may weigh."""


@frozen
class PublicReport:
    """A fault that somebody has reported."""

    id: str
    project: str
    url: str
    summary: str
    properties: tuple[str, ...]
    rules: tuple[str, ...]
    fields: tuple[str, ...]
    """Patterns of fields."""
    marks: frozenset[Mark]

    def __str__(self) -> str:
        return f"{self.project}: {self.summary} {self.url}"

    @property
    def breadth(self) -> int:
        """How much it claims."""
        return len(self.properties) + len(self.rules) + len(self.fields) + len(self.marks)


@frozen
class Clues:
    """What a failure leaves."""

    property_id: str | None = None
    """That fell."""
    field: str | None = None
    """In which an engine differs first."""
    rule: str | None = None
    """That decides this field."""
    marks: frozenset[Mark] = frozenset()
    """What has happened on the way."""

    def weigh(self, report: PublicReport) -> int:
        """How much a report shares; 0 if too little."""
        falls = self.property_id in report.properties
        field = self.field
        shows = field is not None and any(fnmatchcase(field, f) for f in report.fields)
        against, marks = self.rule in report.rules, len(self.marks & report.marks)
        if not (falls or shows or (against and marks)):
            return 0
        absent = bool(report.marks) and not marks
        weight = falls * PROPERTY + shows * FIELD + against * RULE + min(marks, MARKS) * MARK
        return weight - absent * ABSENT


def similar(clues: Clues, reports: Iterable[PublicReport]) -> tuple[PublicReport, ...]:
    """The reports most like a failure, the most specific first."""
    weighed = [(clues.weigh(report), report) for report in reports]
    best = max((weight for weight, _ in weighed), default=0)
    near = [(w, report) for w, report in weighed if w and w >= best - NEAR]
    near.sort(key=lambda found: (-found[0], found[1].breadth))  # stable: then as in the file
    return tuple(report for _, report in near[:MOST])


def marks_on(machine: Machine, actions: Iterable[Action]) -> frozenset[Mark]:
    """What happens to the specification along a program, as far as it is legal."""
    found: set[Mark] = set()
    state = machine.initial()
    for action in actions:
        try:
            moved = machine.apply(state, action)
        except SpecError:
            break
        found.update(marks_of(step_of(machine, state, action, moved)))
        state = moved.state
    return frozenset(found)


# --- reading -------------------------------------------------------------------------------


@cache
def known_reports() -> tuple[PublicReport, ...]:
    """The reports that come with servecheck."""
    return read_reports(REPORTS)


def read_reports(file: Path) -> tuple[PublicReport, ...]:
    """The reports of a register.

    Raises:
        RegisterError: it cannot be read, or is not what it should be.
    """
    return tuple(_report(table) for table in tables(file, "report", NEEDED, OPTIONAL))


def _report(table: Table) -> PublicReport:
    id, project, url, summary = map(table.text, NEEDED[:4])
    if URL.fullmatch(url) is None:
        raise table.wrong("url", f"{url!r} is no report", "link an issue, a change or a commit")
    if not summary.endswith(".") or "\n" in summary:
        raise table.wrong("summary", f"{summary!r} is no sentence", "write one, with a full stop")
    properties = table.texts("properties", WATCHED, "a property of spec/README.md")
    if not properties:
        raise table.wrong("properties", "there are none", "say what the fault makes fall")
    rules = table.texts("rules", {rule.number for rule in RULES}, "a number of spec/README.md")
    fields = table.texts("fields", None, "a field")
    marks = table.texts("marks", Mark.__members__, "a name of servecheck.marks.Mark")
    held = frozenset(Mark[mark] for mark in marks)
    return PublicReport(id, project, url, summary, properties, rules, fields, held)
