"""`servecheck zoo`: faults of real engines, and which check finds each.

Theory of operation. The work is `servecheck.zoo.matrix`; here its rows become a table or one JSON
object. In a pipe each row is told on standard error when it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, brief, complain, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.zoo.entry import Entry
    from servecheck.zoo.matrix import Matrix
    from servecheck.zoo.run import Kill, Row

STYLES = {"killed": "green", "missed": "bold red", "indistinguishable": "yellow"}


def command(
    entry: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="An entry; once for each, or all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    seconds: Annotated[
        float,
        typer.Option(min=0.001, help="Budget of a check; a second stands for 1,000 actions."),
    ] = 60.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
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
    1: some were missed.
    """
    from servecheck.zoo import ENTRIES
    from servecheck.zoo.matrix import MISSED, chosen, matrix
    from servecheck.zoo.run import ACTIONS_A_SECOND, Plan

    for name in entry or ():
        if name not in ENTRIES:
            raise BadInput(escaped(f"--entry {name}: no such entry; see servecheck zoo --list"))
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
    found = matrix(entries, plan, jobs, resume, lambda row: complain(_line(row)))
    if as_json:
        say_json(told(found))
    else:
        for line, style in _table(found):
            say((line, style))
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

    from servecheck.zoo.matrix import INDISTINGUISHABLE, KILLED, MISSED

    return {
        "entries": len(found.rows),
        KILLED: found.count(KILLED),
        MISSED: found.count(MISSED),
        INDISTINGUISHABLE: found.count(INDISTINGUISHABLE),
        "rows": [asdict(row) for row in found.rows],
    }


def _line(row: Row) -> str:
    """A row in one line, for whoever waits."""
    return f"{row.entry}: {row.verdict}, {_by(row.spec)}, {_by(row.properties)}, {_by(row.golden)}"


def _by(kill: Kill | None) -> str:
    return "-" if kill is None else brief(kill.by)


def _table(found: Matrix) -> Iterator[tuple[str, str]]:
    """The table: who found what, after how many steps, and how small it became."""
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
    totals = told(found)
    yield (
        f"{totals['entries']} entries: {totals['killed']} killed, {totals['missed']} missed, "
        f"{totals['indistinguishable']} indistinguishable",
        "bold",
    )


def _steps(kill: Kill | None) -> str:
    return "" if kill is None else f"{kill.steps:,}"
