"""docs/zoo.md: the kill matrix as a page, made from the rows that were kept.

Theory of operation. `results.jsonl` holds a row for each pair of entry and seed, of one run of
`servecheck zoo` over all of them; `first_run.jsonl` the rows of the run before anybody had seen
what the frozen strategies find (`frozen.toml`). What does not depend on chance is in the row of the
first seed of an entry. Nothing of the page is written by hand but what is written here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from servecheck.zoo import ENTRIES, SUBJECTS
from servecheck.zoo.keys import FROZEN
from servecheck.zoo.matrix import Matrix, chosen
from servecheck.zoo.reports import PublicReport, read_reports, reports_of
from servecheck.zoo.rows import INDISTINGUISHABLE, KILLED, MISSED, Kill, Row, read_rows
from servecheck.zoo.seeds import AIMS, by_entry, spread, totals

RESULTS = Path(__file__).with_name("results.jsonl")
FIRST_RUN = Path(__file__).with_name("first_run.jsonl")

ByEntry = Mapping[str, Sequence[Row]]

COLUMNS = (
    "entry",
    "fault",
    "comparison",
    "steps: median, worst",
    "first to fall",
    "must fall",
    "recorded",
    "program",
    "shortest",
)

PAGE = """# The zoo

Made by `python -m servecheck.document` from the rows of `servecheck zoo`. Each entry is a fault
that a real engine had, planted in the fast engine as the smallest change of one part of it. Each
was tried by

* **comparison**: a campaign of `servecheck fuzz` beside the specification, with states, plans and
  events compared. *Steps* are the actions tried up to the first difference, before shrinking: the
  median of all seeds, and the worst of them;
* **properties**: walks on which the engine is alone, every property asked of what it does. *First
  to fall* is the one that fell first, with its steps; *must fall* the one that the fault is to
  bring down, with the steps up to its fall when no other is asked;
* **recorded**: golden traces and recordings of a real scheduler, with the engine in the place of
  the specification;
* **search**: in the world of the smallest program that a seed came to (its sizes, its requests),
  every shorter program. *Program* is the median of what shrinking came to, *shortest* the least
  that is known; that one lies in `traces/zoo/`. An entry that is masked by a second guard is
  searched for a difference in all states of `{scopes}`.

A second of a budget is 1,000 actions, so all but CPU seconds is a function of the seed. Where no
seed is named, it is the first.

## Figures

{figures}

## Entries
{entries}
## Reports that no entry stands for

{others}
"""


def document() -> str:
    """The page."""
    from servecheck.zoo.run import SCOPES

    rows, first = pairs_of(RESULTS), pairs_of(FIRST_RUN)
    reports = read_reports()
    return PAGE.format(
        scopes=SCOPES,
        figures="\n".join(_figures(rows, first, reports)),
        entries="\n".join(_sections(rows, reports)),
        others="\n".join(_others(reports)),
    )


def rows_of(file: Path) -> dict[str, Row]:
    """The row of each entry with the seed that was tried at length."""
    return {name: rows[0] for name, rows in pairs_of(file).items()}


def pairs_of(file: Path) -> dict[str, tuple[Row, ...]]:
    """The latest row of each pair, by entry; that which was tried at length comes first."""
    return by_entry(read_rows(file))


def _figures(rows: ByEntry, first: ByEntry, reports: Sequence[PublicReport]) -> Iterator[str]:
    frozen = tomllib.loads(FROZEN.read_text(encoding="utf-8"))
    covered = sum(bool(report.entries) for report in reports)
    classes = {entry.root_cause for entry in ENTRIES.values()}
    yield (
        f"{len(ENTRIES)} entries of {len(classes)} classes stand for {covered} of {len(reports)} "
        "public reports."
    )
    yield ""
    yield "| with the first seed | first run | now |"
    yield "| --- | ---: | ---: |"
    both = [[mine[0] for mine in some.values()] for some in (first, rows)]
    for verdict in (KILLED, MISSED, INDISTINGUISHABLE):
        yield f"| {verdict} | {' | '.join(str(Matrix(tuple(m)).count(verdict)) for m in both)} |"
    for name, check in (
        ("comparison", "spec"),
        ("properties", "properties"),
        ("recorded", "golden"),
    ):
        counts = (sum(getattr(row, check) is not None for row in mine) for mine in both)
        yield f"| by {name} | {' | '.join(map(str, counts))} |"
    yield ""
    yield from _over_seeds([row for mine in rows.values() for row in mine])
    must = [mine[0] for mine in rows.values() if mine[0].verdict == KILLED]
    came = sum(row.expected is not None for row in must)
    led = sum(row.properties is not None and row.properties.by == _must(row) for row in must)
    yield ""
    yield (
        f"The property that must fall fell of {came} of {len(must)} entries that were killed; of "
        f"{led} it was the first to fall."
    )
    yield ""
    yield (
        f"The first run used the strategies of {frozen['date']} (commit {frozen['commit'][:10]}), "
        "whose hashes were taken before any entry was run; entries that are masked came later."
    )


def _over_seeds(rows: Sequence[Row]) -> Iterator[str]:
    """The figures of all pairs, beside what they are to be."""
    all_ = totals(rows)
    pairs = [row for row in rows if row.verdict != INDISTINGUISHABLE]
    budgets = " or ".join(f"{actions:,}" for actions in sorted({row.actions for row in pairs}))
    yield f"| all pairs of an entry and one of {all_.seeds} seeds | aim | seen |"
    yield "| --- | ---: | ---: |"
    for what, aim, seen in (
        (f"killed within {budgets} actions", f"{all_.pairs:,}", f"{all_.killed:,}"),
        ("of these by comparison", "", f"{all_.compared:,}"),
        ("CPU seconds to the first failure, median", AIMS["cpu"], _cost(all_.cpu.middle)),
        ("the worst", AIMS["worst cpu"], _cost(all_.cpu.worst)),
        ("steps to it, median", "", _cost(all_.steps.middle)),
        ("the worst", "", _cost(all_.steps.worst)),
        ("actions of the smallest program, median", AIMS["program"], _cost(all_.program.middle)),
        ("the longest", "", _cost(all_.program.worst)),
    ):
        yield f"| {what} | {aim} | {seen} |"
    left = by_entry(row for row in pairs if row.first is None)
    if left:
        told = (f"`{name}` ({', '.join(str(r.seed) for r in mine)})" for name, mine in left.items())
        yield ""
        yield f"Not killed by chance, with these seeds: {', '.join(told)}."


def _cost(cost: float | None) -> str:
    """A number; or that there is none, since something was not found."""
    if cost is None:
        return "not found"
    return f"{cost:,}" if isinstance(cost, int) else f"{cost:.2f}"


def _sections(rows: ByEntry, reports: Sequence[PublicReport]) -> Iterator[str]:
    for module in SUBJECTS:
        subject = module.__name__.rpartition(".")[2]
        yield f"\n### {subject}\n"
        yield f"| {' | '.join(COLUMNS)} |"
        yield "| --- | --- | --- | ---: | --- | --- | --- | ---: | ---: |"
        for entry in chosen(()):
            if entry.subject == subject:
                links = ", ".join(_links(reports_of(entry, reports)))
                told = f"{entry.title} *{entry.root_cause}* ({links})"
                yield f"| `{entry.id}` | {told} | {_cells(rows[entry.id])} |"


def _cells(rows: Sequence[Row]) -> str:
    row = rows[0]
    if row.verdict != KILLED:
        return f"**{row.verdict}**: {row.why} | | | | | | "
    steps = spread(None if mine.spec is None else mine.spec.steps for mine in rows)
    fell, must = row.properties, row.expected
    return " | ".join(
        (
            "" if row.spec is None else f"`{_field(row.spec)}`",
            ", ".join(map(_cost, (steps.middle, steps.worst))),
            "" if fell is None else f"{fell.by}, {fell.steps:,}",
            f"{_must(row)}, {_cost(None if must is None else must.steps)}",
            "" if row.golden is None else row.golden.by,
            _cost(spread(mine.program for mine in rows if mine.program is not None).middle),
            _cost(min((r.shortest for r in rows if r.shortest is not None), default=None)),
        )
    )


def _must(row: Row) -> str:
    """The property that the fault is to bring down."""
    return ENTRIES[row.entry].expects


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
