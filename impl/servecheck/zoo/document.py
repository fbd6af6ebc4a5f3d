"""docs/zoo.md: the kill matrix as a page, made from the rows that were kept.

Theory of operation. `results.jsonl` holds a row for each entry, of one run of `servecheck zoo` over
all of them; `first_run.jsonl` the rows of the run before anybody had seen what the frozen
strategies find (`frozen.toml`). Nothing of the page is written by hand but what is written here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from servecheck.zoo import ENTRIES, SUBJECTS
from servecheck.zoo.keys import FROZEN
from servecheck.zoo.matrix import INDISTINGUISHABLE, KILLED, MISSED, Matrix, chosen, read_rows
from servecheck.zoo.reports import PublicReport, read_reports, reports_of
from servecheck.zoo.run import Kill, Row

RESULTS = Path(__file__).with_name("results.jsonl")
FIRST_RUN = Path(__file__).with_name("first_run.jsonl")

COLUMNS = (
    "entry",
    "fault",
    "comparison",
    "steps, runs",
    "property",
    "recorded",
    "program",
    "shortest",
)

PAGE = """# The zoo

Made by `python -m servecheck.document` from the rows of `servecheck zoo`. Each entry is a fault
that a real engine had, planted in the fast engine as the smallest change of one part of it. Each
was tried by

* **comparison**: a campaign of `servecheck fuzz` beside the specification, with states, plans and
  events compared. *Steps* and *runs* are those up to the first difference, before shrinking;
* **properties**: walks on which the engine is alone, every property asked of what it does; where
  another one fell first than was expected, both are told;
* **recorded**: golden traces and recordings of a real scheduler, with the engine in the place of
  the specification;
* **search**: in the world of the smallest program found (its sizes, its requests), every shorter
  program, up to {edges:,} actions. Where comparison found none, the program was written by hand.

A second of a budget is 1,000 actions, so all but CPU seconds is a function of the seed.

## Figures

{figures}

## Entries
{entries}
## Reports that no entry stands for

{others}
"""


def document() -> str:
    """The page."""
    from servecheck.zoo.search import EDGES

    rows, first = rows_of(RESULTS), rows_of(FIRST_RUN)
    reports = read_reports()
    return PAGE.format(
        edges=EDGES,
        figures="\n".join(_figures(rows, first, reports)),
        entries="\n".join(_sections(rows, reports)),
        others="\n".join(_others(reports)),
    )


def rows_of(file: Path) -> dict[str, Row]:
    """The last row of each entry."""
    return {row.entry: row for row in read_rows(file)}


def _figures(
    rows: dict[str, Row], first: dict[str, Row], reports: Sequence[PublicReport]
) -> Iterator[str]:
    frozen = tomllib.loads(FROZEN.read_text(encoding="utf-8"))
    covered = sum(bool(report.entries) for report in reports)
    classes = {entry.root_cause for entry in ENTRIES.values()}
    yield (
        f"{len(ENTRIES)} entries of {len(classes)} classes stand for {covered} of {len(reports)} "
        "public reports."
    )
    yield ""
    yield "| | first run | now |"
    yield "| --- | ---: | ---: |"
    before, now = Matrix(tuple(first.values())), Matrix(tuple(rows.values()))
    for verdict in (KILLED, MISSED, INDISTINGUISHABLE):
        yield f"| {verdict} | {before.count(verdict)} | {now.count(verdict)} |"
    for name, check in (
        ("comparison", "spec"),
        ("properties", "properties"),
        ("recorded", "golden"),
    ):
        counts = (sum(getattr(row, check) is not None for row in m.rows) for m in (before, now))
        yield f"| by {name} | {' | '.join(map(str, counts))} |"
    steps = sorted(row.spec.steps for row in rows.values() if row.spec is not None)
    seconds = sorted(row.spec.cpu for row in rows.values() if row.spec is not None)
    small = sorted(row.program for row in rows.values() if row.program is not None)
    if steps:
        middle = len(steps) // 2
        yield ""
        yield (
            f"By comparison, half of them within {steps[middle]:,} steps and {seconds[middle]:.1f} "
            f"CPU seconds, the last one after {steps[-1]:,} steps and {seconds[-1]:.1f} seconds; "
            f"half of the smallest programs have at most {small[len(small) // 2]} actions, "
            f"the longest {small[-1]}."
        )
    expected = sum(
        row.properties is not None and row.properties.by == ENTRIES[name].expects
        for name, row in rows.items()
    )
    yield ""
    yield f"The property that was expected was the first to fall of {expected} entries."
    yield ""
    yield (
        f"The first run used the strategies of {frozen['date']} (commit {frozen['commit'][:10]}), "
        "whose hashes were taken before any entry was run."
    )


def _sections(rows: dict[str, Row], reports: Sequence[PublicReport]) -> Iterator[str]:
    for module in SUBJECTS:
        subject = module.__name__.rpartition(".")[2]
        yield f"\n### {subject}\n"
        yield f"| {' | '.join(COLUMNS)} |"
        yield "| --- | --- | --- | ---: | --- | --- | ---: | ---: |"
        for entry in chosen(()):
            if entry.subject == subject:
                links = ", ".join(_links(reports_of(entry, reports)))
                told = f"{entry.title} *{entry.root_cause}* ({links})"
                yield f"| `{entry.id}` | {told} | {_cells(rows[entry.id])} |"


def _cells(row: Row) -> str:
    if row.verdict != KILLED:
        return f"**{row.verdict}**: {row.why} | | | | | "
    spec = row.spec
    return " | ".join(
        (
            "" if spec is None else f"`{_field(spec)}`",
            "" if spec is None else f"{spec.steps:,}, {spec.examples}",
            _property(row),
            "" if row.golden is None else row.golden.by,
            "" if row.program is None else str(row.program),
            "" if row.depth is None else str(row.depth),
        )
    )


def _property(row: Row) -> str:
    """Which one fell first, and which one was to fall."""
    if row.properties is None:
        return ""
    fell, expected = row.properties.by, ENTRIES[row.entry].expects
    return fell if fell == expected else f"{fell} (of {expected})"


def _field(kill: Kill) -> str:
    """A field, without the name of a request."""
    return re.sub(r"^(plan of |hits of |blocks of )?\w+: ", r"\1r: ", kill.by)


def _links(reports: Sequence[PublicReport]) -> Iterator[str]:
    for report in reports:
        for url in report.urls[:2]:
            yield f"[{_short(url)}]({url})"


def _short(url: str) -> str:
    """owner/name#1, or what comes near it."""
    known = re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(\w+)/(\w+)", url)
    if known is None:
        return url.rpartition("/")[2]
    name, kind, number = known.groups()
    return f"{name}@{number[:7]}" if kind == "commit" else f"{name}#{number}"


def _others(reports: Sequence[PublicReport]) -> Iterator[str]:
    whys = dict.fromkeys(report.why for report in reports if report.why is not None)
    for why in whys:
        mine = [report for report in reports if report.why == why]
        yield f"* {why} ({len(mine)}): {', '.join(_links(mine))}"
