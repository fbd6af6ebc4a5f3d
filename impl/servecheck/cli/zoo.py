"""`servecheck zoo`: faults of real engines, and which check finds each.

Theory of operation. The work is `servecheck.zoo.matrix`; here its rows become a table or one JSON
object. Each row is told on standard error when it is there. With several seeds the table has a line
for each entry, with the median and the worst of its seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import MOST_JOBS, Json
from servecheck.cli.terminal import BadInput, Exit, brief, complain, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.zoo.entry import Entry
    from servecheck.zoo.matrix import Matrix
    from servecheck.zoo.rows import Kill, Row

STYLES = {"killed": "green", "missed": "bold red", "indistinguishable": "yellow"}


def command(
    entry: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="An entry; once for each. All, if none.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="How many seeds, from --seed on; the first one at length."
        ),
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(min=0.001, help="Budget of a check; a second stands for 1,000 actions."),
    ] = 60.0,
    jobs: Annotated[int, typer.Option(min=1, max=MOST_JOBS, help="Processes.")] = 1,
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Golden traces and recordings: traces, if it is there."
        ),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the smallest programs there.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep rows in this file, and go on from those in it."),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the entries, and try none.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Plant faults that real engines had in the fast engine, and see who finds them.

    Each is compared with the specification by a fuzz campaign, asked for every property alone, and
    run along what was recorded; the smallest program is searched for a shorter one. The same seed
    gives the same rows, but for CPU seconds. Exit code 0: all were found, or cannot be told apart;
    1: some were missed; 130: interrupted, and the rows so far are told.
    """
    from concurrent.futures.process import BrokenProcessPool

    from servecheck.zoo import ENTRIES
    from servecheck.zoo.matrix import chosen, matrix
    from servecheck.zoo.rows import MISSED, ResultsError
    from servecheck.zoo.run import ACTIONS_A_SECOND, Plan

    for name in entry or ():
        if name not in ENTRIES:
            raise BadInput(escaped(f"--entry {name}: no such entry; see servecheck zoo --list"))
    if not isfinite(seconds * ACTIONS_A_SECOND):
        raise BadInput(f"--seconds {seconds} never ends; give a smaller number")
    folder = traces if traces is not None else Path("traces")
    if traces is not None and not traces.is_dir():
        raise BadInput(escaped(f"--traces {traces}: there is no such folder"))
    entries = chosen(entry or ())
    if listing:
        return _list(entries, as_json)
    plan = Plan(
        seed,
        max(round(seconds * ACTIONS_A_SECOND), 1),
        folder if folder.is_dir() else None,
        keep,
    )
    try:
        found = matrix(entries, plan, jobs, resume, lambda row: complain(_line(row)), seeds)
    except ResultsError as error:
        raise BadInput(escaped(str(error))) from None
    except BrokenProcessPool:
        what = "a process died, for want of memory as a rule; ask for fewer --jobs"
        raise BadInput(what if resume is None else f"{what}; the rows are in {resume}") from None
    if as_json:
        say_json(told(found))
    else:
        for line, style in _table(found) if seeds == 1 else _over_seeds(found):
            say((line, style))
    if found.interrupted:
        complain("interrupted")
        return Exit.INTERRUPTED
    return Exit.FALLS if found.count(MISSED) else Exit.HOLDS


def _list(entries: tuple[Entry, ...], as_json: bool) -> int:
    from servecheck.zoo.reports import read_reports, reports_of

    reports = read_reports()
    rows = [
        {
            "entry": entry.id,
            "subject": entry.subject,
            "title": entry.title,
            "seen": entry.seen,
            "root_cause": entry.root_cause,
            "expects": entry.expects,
            "needs": entry.needs,
            "masked": entry.masked,
            "reports": [report.id for report in reports_of(entry, reports)],
        }
        for entry in entries
    ]
    if as_json:
        say_json({"entries": rows})
        return Exit.HOLDS
    for entry in entries:
        say((entry.id, "bold"), f"  {entry.root_cause}, expected: {entry.expects}")
        say(f"    {entry.title}")
        say(f"    {', '.join(report.id for report in reports_of(entry, reports))}")
    covered = sum(bool(report.entries) for report in reports)
    say(f"{len(entries)} entries; of {len(reports)} reports {covered} have one")
    return Exit.HOLDS


# --- rows ----------------------------------------------------------------------------------------


def told(found: Matrix) -> dict[str, object]:
    """The matrix as JSON: totals, then a row each."""
    from attrs import asdict

    from servecheck.zoo.rows import INDISTINGUISHABLE, KILLED, MISSED
    from servecheck.zoo.seeds import totals

    return {
        "entries": len({row.entry for row in found.rows}),
        KILLED: found.count(KILLED),
        MISSED: found.count(MISSED),
        INDISTINGUISHABLE: found.count(INDISTINGUISHABLE),
        "interrupted": found.interrupted,
        "pairs": asdict(totals(found.rows)),
        "rows": [asdict(row) for row in found.rows],
    }


def _line(row: Row) -> str:
    """A row in one line, for whoever waits."""
    kills = ", ".join(map(_by, (row.spec, row.properties, row.golden)))
    return f"{row.entry}, seed {row.seed}: {row.verdict}, {kills}"


def _by(kill: Kill | None) -> str:
    return "-" if kill is None else brief(kill.by)


def _table(found: Matrix) -> Iterator[tuple[str, str]]:
    """Who found what, after how many steps, and how small it became."""
    wide = max((len(row.entry) for row in found.rows), default=5)
    yield (
        f"{'entry':{wide}}  {'beside the spec':18} {'steps':>6}  {'property':8} {'steps':>6}",
        "bold",
    )
    for row in found.rows:
        spec, alone = row.spec, row.properties
        golden = "" if row.golden is None else f"  {row.golden.by.rpartition('/')[2]}"
        small = "" if row.program is None else f"  {row.program} actions"
        deep = "" if row.depth is None else f", shortest {row.depth}"
        yield (
            f"{row.entry:{wide}}  {_by(spec)[:18]:18} {_steps(spec):>6}  {_by(alone):8} "
            f"{_steps(alone):>6}{small}{deep}{golden}{'' if not row.why else f'  {row.why}'}",
            STYLES[row.verdict],
        )
    yield _verdicts(found)


def _over_seeds(found: Matrix) -> Iterator[tuple[str, str]]:
    """An entry a line: how many of its seeds found it, and at what cost."""
    from servecheck.zoo.rows import MISSED
    from servecheck.zoo.seeds import by_entry, totals

    entries = by_entry(found.rows)
    wide = max(map(len, entries), default=5)
    heads = f"{'killed':>7} {'steps':>6} {'worst':>6} {'CPU s':>6} {'worst':>6} {'actions':>7}"
    yield f"{'entry':{wide}} {heads}", "bold"
    for name in dict.fromkeys(row.entry for row in found.rows):
        rows = entries[name]
        mine = totals(rows)
        missed = any(row.verdict == MISSED for row in rows)
        costs = (mine.steps.middle, mine.steps.worst, mine.cpu.middle, mine.cpu.worst)
        figures = " ".join(f"{_figure(cost):>6}" for cost in costs)
        killed = f"{mine.killed}/{mine.pairs}"
        yield (
            f"{name:{wide}} {killed:>7} {figures} {_figure(mine.program.middle):>7}",
            STYLES[MISSED if missed else rows[0].verdict],
        )
    yield _verdicts(found)
    sums = totals(found.rows)
    yield (
        f"{sums.killed} of {sums.pairs} pairs of entry and seed: median "
        f"{_figure(sums.steps.middle)} steps and {_figure(sums.cpu.middle)} CPU s, worst "
        f"{_figure(sums.steps.worst)} and {_figure(sums.cpu.worst)}; smallest program: median "
        f"{_figure(sums.program.middle)} actions, longest {_figure(sums.program.worst)}",
        "",
    )


def _verdicts(found: Matrix) -> tuple[str, str]:
    from servecheck.zoo.rows import INDISTINGUISHABLE, KILLED, MISSED

    verdicts = ", ".join(f"{found.count(v)} {v}" for v in (KILLED, MISSED, INDISTINGUISHABLE))
    entries = len({row.entry for row in found.rows})
    return f"{entries} {'entry' if entries == 1 else 'entries'}: {verdicts}", "bold"


def _figure(cost: float | None) -> str:
    if cost is None:
        return "-"
    return f"{cost:,}" if isinstance(cost, int) else f"{cost:.2f}"


def _steps(kill: Kill | None) -> str:
    return "" if kill is None else f"{kill.steps:,}"
