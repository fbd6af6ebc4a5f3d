"""`servecheck fuzz`: random programs of actions, every property asked after each of them.

Theory of operation. The work is `servecheck.fuzz.campaign`, or `servecheck.fuzz.long` where walks
alone are asked for; the engine that goes along is made by `servecheck.cli.engines`, and what came
of it is told by `servecheck.cli.summary`. On a terminal a bar shows what is spent; in a pipe a line
on standard error does, every ten seconds. Ctrl-C ends the search, not the report; the exit code is
130 then, unless something had fallen.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import MOST_JOBS, Command, Deviations, Engine, Json, Level, Timeout
from servecheck.cli.terminal import BadInput, Exit, complain, escaped, say, say_json
from servecheck.cli.terminal import progress as bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecheck.fuzz.legs import Engines
    from servecheck.fuzz.summary import Progress, Summary
    from servecheck.lockstep.deviations import Deviation

FAILURES = Path("traces/failures")
"""Where the program is written on which something fell."""

SECONDS = 60.0
"""How long to search, unless something else is said."""

WALKS = "walks"
DRIVERS = ("both", WALKS)

EVERY = 10.0
"""Seconds from one line of progress to the next, in a pipe."""


def command(
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="How long to search; 60 if not said.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One policy, such as VLLM_0_33, instead of all kinds."),
    ] = None,
    moves: Annotated[int, typer.Option(min=1, max=100_000, help="Moves in one run.")] = 40,
    driver: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Who searches: both, Hypothesis and walks in turn; or walks alone."
        ),
    ] = "both",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="With walks alone: search so many steps, instead of seconds."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=MOST_JOBS, help="With walks alone: processes.")
    ] = 1,
    properties: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Ask these, such as OWN-1,LRU-3; all; or none."),
    ] = None,
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
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Begin with the starts kept there, and keep what is learned."
        ),
    ] = None,
    deviations: Deviations = None,
    as_json: Json = False,
) -> int:
    """Search for a program on which a property falls, or an engine and the specification part.

    Sizes, choices and actions are drawn, most of them such that something interesting happens.
    Every property is asked after each step; falls that the specification knows of are counted. An
    engine goes along, the fast engine if none is named, and what it shows is compared. What lies
    in traces/failures is tried first.
    Exit code 0: the time was spent and nothing else fell; 1: something did, and the smallest
    program found is shown and written to traces/failures; 2: the engine cannot be checked;
    3: the engine is gone, or was let go at a known deviation, or does not do the same twice, or
    nothing was checked;
    130: it was interrupted before anything fell, and what is known so far is shown.
    """
    from servecheck.cli.engines import subject_of
    from servecheck.fuzz.sizes import fixed_sizes

    sizes = fixed_sizes(size or ())
    if spec_only and (engine or process or level or timeout is not None):
        raise BadInput("--spec-only leaves every engine out; drop it, or the engine")
    for_walks = steps is not None or jobs > 1
    chosen = properties is not None
    _check_driver(driver, for_walks, program is not None, corpus is not None, chosen)
    seconds = _seconds(seconds, steps)
    asked = _properties(properties, spec_only)
    known = () if spec_only else read_register(deviations)
    until = None if program is not None or seconds is None else monotonic() + seconds
    engines: Engines = nullcontext
    if not spec_only:
        engines = partial(subject_of, engine, process, level, known, timeout, until)
    again = _again(engine, process, level, spec_only)
    if driver == WALKS:
        from servecheck.fuzz.legs import Orders
        from servecheck.fuzz.long import Budget, long_campaign

        orders = Orders(engines, seed, moves, asked, profile, sizes)
        with _showing(seconds, steps) as show:
            found = long_campaign(
                orders,
                Budget(steps, seconds),
                jobs,
                show,
                failures=FAILURES,
                again=again,
                corpus=corpus,
            )
        return _ended(found, as_json)
    if program is not None:
        from servecheck.fuzz.retry import rerun
        from servecheck.trace.read import read_trace

        with engines() as subject:
            again += f" --program {program}"
            return _ended(rerun(read_trace(program), subject, again), as_json)
    from servecheck.fuzz.campaign import campaign

    with engines() as subject, _showing(seconds, None) as show:
        found = campaign(
            seconds or 0.0,
            seed,
            moves,
            profile,
            show,
            following=subject,
            failures=FAILURES,
            again=again,
            sizes=sizes,
            corpus=corpus,
            properties=asked,
        )
    return _ended(found, as_json)


def _check_driver(driver: str, for_walks: bool, reruns: bool, corpus: bool, chosen: bool) -> None:
    """Refuse options that do not go with each other."""
    if driver not in DRIVERS:
        raise BadInput(f"--driver {escaped(driver)} is unknown; take one of {', '.join(DRIVERS)}")
    if driver != WALKS and for_walks:
        raise BadInput("--steps and --jobs are for walks; add --driver walks")
    if reruns and (driver == WALKS or corpus or chosen):
        raise BadInput("--program does not search; drop it, or --driver, --corpus, --properties")


def _seconds(seconds: float | None, steps: int | None) -> float | None:
    """How long to search; None: until the steps are walked."""
    if seconds is None:
        return SECONDS if steps is None else None
    if not isfinite(seconds):
        raise BadInput(f"--seconds {seconds} never ends; give a number")
    if steps is not None:
        raise BadInput("--steps and --seconds are two budgets; give one of them")
    return seconds


def _ended(found: Summary, as_json: bool) -> int:
    """Tell what came of it."""
    from servecheck.cli.summary import lines, told
    from servecheck.fuzz.summary import Verdict

    if as_json:
        say_json(told(found))
    else:
        for line in lines(found):
            say(*line) if isinstance(line, tuple) else say(line)
    unsure = (Verdict.UNDETERMINED, Verdict.NONDETERMINISTIC)
    if found.interrupted and found.verdict is Verdict.UNDETERMINED:
        return Exit.INTERRUPTED
    if found.verdict in unsure:
        return Exit.UNDETERMINED
    return Exit.HOLDS if found.verdict is Verdict.HOLDS else Exit.FALLS


def _properties(given: str | None, spec_only: bool) -> tuple[str, ...]:
    """The properties that are asked; all of them unless something else is said.

    Raises:
        BadInput: there is no such property, or nothing at all would be checked.
    """
    from servespec.properties import PROPERTIES

    if given in (None, "all"):
        return tuple(PROPERTIES)
    if given == "none":
        if spec_only:
            raise BadInput("--spec-only with --properties none checks nothing; drop one of them")
        return ()
    named = [name.strip() for name in str(given).split(",")]
    for name in named:
        if name not in PROPERTIES:
            near = get_close_matches(name, PROPERTIES, n=3, cutoff=0.3) or tuple(PROPERTIES)
            raise BadInput(
                f"--properties {escaped(name or str(given))}: no such property; take all, none, "
                f"or of {', '.join(near)}"
            )
    return tuple(name for name in PROPERTIES if name in named)


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
def _showing(seconds: float | None, steps: int | None) -> Iterator[Callable[[Progress], None]]:
    total = round(seconds or 0) if steps is None else steps
    if sys.stderr is not None and sys.stderr.isatty():
        with bar("fuzzing", max(total, 1)) as update:

            def show(progress: Progress) -> None:
                spent = int(progress.elapsed) if steps is None else progress.steps
                update(min(spent, total))

            yield show
        return
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.elapsed >= told + EVERY:
            told = progress.elapsed
            of = "" if progress.seconds is None else f" of {progress.seconds:.0f}"
            of_steps = "" if progress.asked_steps is None else f" of {progress.asked_steps:,}"
            complain(
                f"{progress.elapsed:.0f} s{of}: {progress.runs:,} runs, "
                f"{progress.steps:,}{of_steps} steps, {progress.marks} marks"
                + (", shrinking" if progress.shrinking else "")
            )

    yield tell
