"""`servecheck fuzz`: random programs of actions, every property asked after each of them.

Theory of operation. The work is `servecheck.fuzz.campaign`, the engine that goes along is made by
`servecheck.cli.engines`; here the summary becomes lines, within 80 columns, or one JSON object. On
a terminal a bar shows the time spent; in a pipe a line on standard error does, every ten seconds.
Ctrl-C ends the search, not the report; the exit code is 130 then, unless something had fallen.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Command, Deviations, Engine, Json, Level, Timeout
from servecheck.cli.terminal import BadInput, Exit, Part, brief, complain, escaped, say, say_json
from servecheck.cli.terminal import progress as bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecheck.fuzz.campaign import Progress, Seen, Summary
    from servecheck.lockstep.deviations import Deviation

FAILURES = Path("traces/failures")
"""Where the program is written on which something fell."""

EVERY = 10.0
"""Seconds from one line of progress to the next, in a pipe."""

WIDTH = 80
STYLES = {
    "holds": "bold green",
    "falls": "bold red",
    "diverges": "bold red",
    "stale": "bold red",
}
UNSURE = "bold yellow"


def command(
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to search.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One policy, such as VLLM_0_33, instead of all kinds."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Moves in one run.")] = 40,
    engine: Engine = None,
    process: Command = None,
    timeout: Timeout = None,
    level: Level = None,
    spec_only: Annotated[
        bool, typer.Option("--spec-only", help="Check the specification alone.")
    ] = False,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Keep a size, such as num_blocks=9; once for each."
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Do not search: run the program of this trace."),
    ] = None,
    deviations: Deviations = None,
    as_json: Json = False,
) -> int:
    """Search for a program on which a property falls, or an engine and the specification part.

    Sizes, choices and actions are drawn, most of them such that something interesting happens.
    Every property is asked after each step; falls that the specification knows of are counted. An
    engine goes along, the fast engine if none is named, and what it shows is compared.
    Exit code 0: the time was spent and nothing else fell; 1: something did, and the smallest
    program found is shown and written to traces/failures; 2: the engine cannot be checked;
    3: the engine is gone, or was let go at a known deviation, or does not do the same twice;
    130: it was interrupted before anything fell, and what is known so far is shown.
    """
    from servecheck.cli.engines import subject_of
    from servecheck.fuzz.campaign import Verdict, campaign, rerun
    from servecheck.fuzz.sizes import fixed_sizes
    from servecheck.trace.read import read_trace

    sizes = fixed_sizes(size or ())
    if spec_only and (engine or process or level or timeout is not None):
        raise BadInput("--spec-only leaves every engine out; drop it, or the engine")
    if not isfinite(seconds):
        raise BadInput(f"--seconds {seconds} never ends; give a number")
    known = () if spec_only else read_register(deviations)
    until = None if program is not None else monotonic() + seconds
    subjects = (
        nullcontext() if spec_only else subject_of(engine, process, level, known, timeout, until)
    )
    again = _again(engine, process, level, spec_only)
    with subjects as subject:
        if program is not None:
            found = rerun(read_trace(program), subject, f"{again} --program {program}")
        else:
            with _showing(seconds) as show:
                found = campaign(
                    seconds,
                    seed,
                    steps,
                    profile,
                    show,
                    following=subject,
                    failures=FAILURES,
                    again=again,
                    sizes=sizes,
                )
    if as_json:
        say_json(_told(found))
    else:
        for line in lines(found):
            say(*line) if isinstance(line, tuple) else say(line)
    unsure = (Verdict.UNDETERMINED, Verdict.NONDETERMINISTIC)
    if found.interrupted and found.verdict is Verdict.UNDETERMINED:
        return Exit.INTERRUPTED
    if found.verdict in unsure:
        return Exit.UNDETERMINED
    return Exit.HOLDS if found.verdict is Verdict.HOLDS else Exit.FALLS


def read_register(file: Path | None) -> tuple[Deviation, ...]:
    """The known deviations in a file, or those that come along; each has a trace."""
    from servecheck.lockstep.deviations import REGISTER, read_deviations
    from servecheck.lockstep.shown import check_traces

    found = read_deviations(file or REGISTER)
    check_traces(found)
    return found


def _again(engine: str | None, process: str | None, level: str | None, spec_only: bool) -> str:
    """The command, as far as it says which engine is checked."""
    alone = ["--spec-only"] if spec_only else []
    return shlex.join(["servecheck", "fuzz", *engine_words(engine, process, level), *alone])


def engine_words(engine: str | None, process: str | None, level: str | None) -> Iterator[str]:
    """The options that say which engine is checked."""
    for option, value in (("--engine", engine), ("--command", process), ("--level", level)):
        if value is not None:
            yield from (option, value)


# --- progress ------------------------------------------------------------------------------


@contextmanager
def _showing(seconds: float) -> Iterator[Callable[[Progress], None]]:
    if sys.stderr is not None and sys.stderr.isatty():
        with bar("fuzzing", max(round(seconds), 1)) as update:
            yield lambda progress: update(min(int(progress.elapsed), round(seconds)))
        return
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.elapsed >= told + EVERY:
            told = progress.elapsed
            complain(
                f"{progress.elapsed:.0f} s of {progress.seconds:.0f}: {progress.runs:,} runs, "
                f"{progress.steps:,} steps, {progress.marks} marks"
                + (", shrinking" if progress.shrinking else "")
            )

    yield tell


# --- lines ---------------------------------------------------------------------------------

Line = str | tuple[Part, ...]


def lines(found: Summary) -> Iterator[Line]:
    """The report, a line at a time."""
    verdict = found.verdict.value
    yield (verdict, STYLES.get(verdict, UNSURE)), f": {why(found)}"
    yield f"{found.budget}, {found.speed:,.0f} steps/s, seed {found.seed}"
    if found.seen is not None:
        yield from wrap(engine_line(found.seen), WIDTH, subsequent_indent="  ")
    yield from evidence(found)
    checked = {name: count for name, count in found.checked.items() if count}
    yield from _table("properties, how often their antecedent was true", checked)
    if found.vacuous:
        yield from _folded("never checked", found.vacuous)
    if found.seen is not None and found.seen.known:
        yield from _table("known deviations of the engine", found.seen.known)
        yield from _table("state adopted after them, followed on", found.seen.adopted)
        if found.seen.let_go:
            yield from _table("let go after them, undetermined from there", found.seen.let_go)
    if found.known:
        yield from _table("falls that the specification knows of", found.known)
    yield from _table("moves", found.moves)
    reached = {mark.name.lower(): count for mark, count in found.marks.items()}
    total = len(reached) + len(found.missed)
    yield from _table(f"marks, {len(reached)} of {total} reached", reached)
    if found.missed:
        yield from _folded("not reached", [mark.name.lower() for mark in found.missed])
    if found.excluded:
        yield from _folded("not possible here", [mark.name.lower() for mark in found.excluded])


def evidence(found: Summary) -> Iterator[str]:
    """What speaks for a verdict other than that it holds: notes, the report, where it is written.
    Names in a program come from whoever wrote it."""
    told = found.notes
    if found.report is not None:
        told += found.report.lines
    elif found.fall is not None:
        told += found.fall.lines
    if told:
        yield ""
    for line in told:
        if line.startswith("replay "):
            yield escaped(line)  # whole, to be copied
            continue
        folded = wrap(
            brief(line),
            WIDTH,
            subsequent_indent=" " * 11,
            drop_whitespace=False,
            # A link is not to be cut at its hyphens.
            break_on_hyphens=not line.startswith("similar "),
        )
        yield from map(str.rstrip, folded)
    if found.trace is not None:
        yield f"written    {escaped(str(found.trace))}"


def why(found: Summary) -> str:
    """The verdict in one clause."""
    match found.verdict.value:
        case "holds":
            return f"nothing fell in {found.elapsed:.0f} s"
        case "falls" if found.fall is not None:
            return f"{found.fall.property_id}, after {len(found.fall.actions)} actions"
        case "diverges" if found.fall is not None and found.seen is not None:
            name = escaped(f"{found.seen.engine.name} {found.seen.engine.version}")
            return f"{name}, after {len(found.fall.actions)} actions"
        case "stale":
            return "the register of known deviations is out of date"
        case "nondeterministic":
            return "the engine does not do the same twice"
        case "undetermined" if found.interrupted and not found.notes:
            pass
        case "undetermined" if found.fall is not None:
            return "the engine diverged, and could not be run again"
        case "undetermined" if found.unable is not None:
            return found.unable
        case "undetermined" if found.seen is not None and found.seen.let_go:
            return "nothing else fell, and the engine was let go at a known deviation"
        case "undetermined" if found.notes:
            return "the engine is gone, and had not diverged"
    ended = "interrupted" if found.interrupted else "ended"
    return f"{ended} after {found.elapsed:.1f} of {found.asked:g} s, and nothing fell"


def engine_line(seen: Seen) -> str:
    """One line on the engine."""
    said = seen.engine
    refused = f", {seen.refused:,} worlds refused" if seen.refused else ""
    return escaped(
        f"engine {said.name} {said.version}, level {said.level.name.lower()}: "
        f"{seen.followed:,} actions in lockstep, {seen.compared:,} fields compared, "
        f"not seen: {', '.join(sorted(seen.unseen)) or 'nothing'}{refused}"
    )


def _table(title: str, counts: dict[str, int]) -> Iterator[str]:
    """Names with counts, the rarest first, in as many columns as fit."""
    yield ""
    yield title
    cells = [
        f"{_short(n):>5} {name}" for name, n in sorted(counts.items(), key=lambda c: (c[1], c[0]))
    ]
    widest = max((len(cell) for cell in cells), default=0) + 1
    columns = max((WIDTH + 1) // widest, 1)
    rows = -(-len(cells) // columns)
    for row in range(rows):
        yield "".join(f"{cell:<{widest}}" for cell in cells[row::rows]).rstrip()


def _short(count: int) -> str:
    """A number in at most five characters."""
    for unit in ("", "k", "M", "G"):
        if count < 10_000:
            return f"{count}{unit}"
        count = round(count / 1000)
    return f"{count}T"


def _folded(label: str, names: Iterable[str]) -> Iterator[str]:
    yield from wrap(f"{label}: {', '.join(names)}", WIDTH, subsequent_indent="  ")


# --- JSON ----------------------------------------------------------------------------------


def engine_told(seen: Seen) -> dict[str, object]:
    """What --json says of the engine."""
    return {
        "name": seen.engine.name,
        "version": seen.engine.version,
        "level": seen.engine.level.name.lower(),
        "actions": seen.followed,
        "fields": seen.compared,
        "not_seen": dict(sorted(seen.unseen.items())),
        "worlds_refused": seen.refused,
        "known_deviations": dict(sorted(seen.known.items())),
        "adopted": dict(sorted(seen.adopted.items())),
        "let_go": dict(sorted(seen.let_go.items())),
    }


def _told(found: Summary) -> dict[str, object]:
    from servecheck.tell import tell_config, tell_policy, tell_program

    fall, seen = found.fall, found.seen
    return {
        "command": "fuzz",
        "verdict": found.verdict.value,
        "seed": found.seed,
        "seconds": {"asked": found.asked, "spent": round(found.elapsed, 3)},
        "interrupted": found.interrupted,
        "runs": found.runs,
        "steps": found.steps,
        "worlds": found.worlds,
        "moves": dict(sorted(found.moves.items())),
        "marks": {mark.name.lower(): count for mark, count in found.marks.items()},
        "marks_missed": [mark.name.lower() for mark in found.missed],
        "marks_not_possible": [mark.name.lower() for mark in found.excluded],
        "checked": dict(sorted(found.checked.items())),
        "never_checked": list(found.vacuous),
        "known_falls": dict(sorted(found.known.items())),
        "notes": list(found.notes),
        "engine": None if seen is None else engine_told(seen),
        "unable": found.unable,
        "report": None if found.report is None else list(found.report.lines),
        "similar": []
        if found.report is None
        else [{"id": r.id, "url": r.url, "summary": r.summary} for r in found.report.similar],
        "trace": None if found.trace is None else str(found.trace),
        "fall": None
        if fall is None
        else {
            "property": fall.property_id,
            "statement": fall.statement,
            "what": fall.what,
            "config": tell_config(fall.config),
            "policy": tell_policy(fall.policy),
            "program": list(tell_program(fall.actions)),
        },
    }
