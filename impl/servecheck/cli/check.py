"""`servecheck check`: search every state of small scopes, and ask every property of all of them.

Where fuzzing says that nothing was found, a search says that there is nothing: it has been in every
state of the scope, and has taken every transition. A property that falls is told with a shortest
program, which is written as a trace.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import MOST_JOBS, Command, Engine, Json, Level
from servecheck.cli.terminal import BadInput, Exit, complain, escaped, say, say_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from servecheck.explore.check import Answer, Checked
    from servecheck.explore.scopes import Scope
    from servecheck.explore.search import Limits, Progress
    from servespec.cache import Cache
    from servespec.plan import State

FAILURES = Path("traces/failures")
"""Where shortest programs are written."""

EVERY = 60.0
"""Seconds from one line on a frontier to the next."""

SIGNS = {
    "holds": "=",
    "vacuous": "-",
    "falls, as known": "~",
    "undetermined": "?",
    "falls": "!",
}
LEGEND = "= holds   ~ falls, as known   - never asked   ? undetermined   ! falls"


def command(
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A scope, or a group of them; again for more."),
    ] = None,
    list_scopes: Annotated[bool, typer.Option("--list", help="List the scopes and end.")] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only scopes of this policy.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="ID", help="Only this one; again for more."),
    ] = None,
    raw: Annotated[bool, typer.Option(help="Search without symmetry.")] = False,
    states: Annotated[int | None, typer.Option(min=1, help="Give up at so many states.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Give up at this depth.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Give up after so long, each scope.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Give up at so much memory.")
    ] = None,
    engine: Engine = None,
    process: Command = None,
    level: Level = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MOST_JOBS, help="Processes; all cores, if none.")
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the graph of states: .dot or .graphml."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the answers as JUnit's XML.")
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write how often each property was asked in each scope, as Markdown.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Search every state of small scopes, and ask every property of all of them; or do every
    transition with an engine beside it.

    Exit code 0: everything holds, or falls where it is known to; 1: something else fell; 3: a
    search stopped before its end.
    """
    from servecheck.explore.check import Wish, check, known_properties
    from servecheck.explore.search import Limits

    chosen = _chosen(scope, profile)
    if list_scopes:
        return _list(chosen, as_json)
    for name in properties or ():
        if name not in known_properties():
            raise BadInput(f"there is no property {name!r}; spec/README.md lists them")
    if graph is not None and len(chosen) != 1:
        raise BadInput(f"--graph draws one scope, and {len(chosen)} are asked for; name one")
    for file in (graph, junit, matrix):
        if file is not None:
            _check_file(file)
    limits = Limits(states, depth, seconds, memory)
    if engine is not None or process is not None or level is not None:
        for name, given in (("--property", properties), ("--raw", raw), ("--graph", graph)):
            if given:
                raise BadInput(f"{name} is about the specification; it does not go with an engine")
        return _beside(chosen, engine, process, level, limits, as_json)
    wanted = frozenset(properties) if properties else None
    wish = Wish(limits, jobs or os.cpu_count() or 1, raw, wanted)
    if graph is not None:
        _draw(chosen[0], limits, raw, graph)
    results: list[Checked] = []
    if not as_json:
        say(LEGEND)
    for one in chosen:
        results.append(check(one, wish, _reporter(one.name)))
        written = _keep(results[-1])
        if not as_json:
            for line in _lines(results[-1], written):
                say(line)
        if results[-1].ended.value == "interrupted":
            break
    if as_json:
        say_json(_told(results))
    elif len(results) > 1:
        for line in _summary(results):
            say(line)
    # Last: that a file cannot be written is no reason to lose what was found.
    if junit is not None:
        _junit(results, junit)
    if matrix is not None:
        _matrix(results, matrix)
    return _exit(results)


def _beside(
    chosen: Sequence[Scope],
    engine: str | None,
    process: str | None,
    level: str | None,
    limits: Limits,
    as_json: bool,
) -> int:
    from servecheck.cli.engines import subject_of
    from servecheck.cli.refining import refine

    # The fast engine, if nothing else is said of it, through its refinement: REF-1 and REF-2.
    name = None if engine == "fast" and level is None else engine
    with subject_of(name, process, level, ()) as subject:
        return refine(chosen, subject, limits, _reporter, FAILURES, as_json)


def _exit(results: Sequence[Checked]) -> Exit:
    from servecheck.explore.check import Says

    said = {result.verdict for result in results}
    if Says.FALLS in said:
        return Exit.FALLS
    if any(result.ended.value == "interrupted" for result in results):
        return Exit.INTERRUPTED
    return Exit.UNDETERMINED if Says.UNDETERMINED in said else Exit.HOLDS


def _chosen(names: Sequence[str] | None, profile: str | None) -> tuple[Scope, ...]:
    from servecheck.explore.scopes import DEFAULT, named, profile_of

    found = tuple(dict.fromkeys(s for name in names or DEFAULT for s in named(name)))
    if profile is None:
        return found
    kept = tuple(s for s in found if profile_of(s) == profile)
    if not kept:
        there = ", ".join(dict.fromkeys(profile_of(s) for s in found))
        raise BadInput(f"no scope of these has the profile {profile!r}; there are {there}")
    return kept


def _list(chosen: Iterable[Scope], as_json: bool) -> Exit:
    from servecheck.explore.scopes import profile_of

    if as_json:
        say_json({s.name: {"about": s.about, "profile": profile_of(s)} for s in chosen})
        return Exit.HOLDS
    for s in chosen:
        say(f"{s.name:<30} {profile_of(s)}: {s.about}")
    return Exit.HOLDS


def _reporter(name: str) -> Callable[[Progress], None]:
    """A line on the frontier every minute."""
    told = monotonic()

    def report(progress: Progress) -> None:
        nonlocal told
        if monotonic() - told < EVERY:
            return
        told = monotonic()
        complain(
            f"{name}: {progress.states:,} states, {progress.transitions:,} transitions, "
            f"depth {progress.depth}, frontier {progress.frontier:,}, {progress.seconds:.0f} s"
        )

    return report


# --- telling -------------------------------------------------------------------------------


def _lines(result: Checked, written: dict[str, str]) -> Iterator[str]:
    sign = SIGNS[result.verdict.value]
    yield (
        f"{sign} {result.scope.name:<28} {result.states:>9,} states {result.transitions:>11,} "
        f"transitions  depth {result.depth:>2}  {result.seconds:6.1f} s  {result.ended.value}"
    )
    for says, answers in _by_answer(result):
        if says in ("holds", "undetermined", "vacuous"):
            names = ", ".join(a.id for a in answers) if says != "holds" else "properties"
            yield f"    {SIGNS[says]} {len(answers)} {names}"
            continue
        for a in answers:
            after = f"{len(a.program)} actions" if a.program else "no action"
            yield f"    {SIGNS[says]} {a.id} after {after}: {escaped(a.what)}"
            if says == "falls":
                yield from (f"        {line}" for line in _program(a))
            if a.id in written:
                yield f"        {written[a.id]}"


def _by_answer(result: Checked) -> Iterator[tuple[str, list[Answer]]]:
    for says in SIGNS:
        mine = [a for a in result.answers if a.says.value == says]
        if mine:
            yield says, mine


def _program(answer: Answer) -> Iterator[str]:
    from servecheck.tell import tell_action
    from servespec.cache import Allocate, Clear, Free

    for number, action in enumerate((*answer.program, *answer.loop), 1):
        loops = "  (round and round from here)" if number == len(answer.program) + 1 else ""
        match action:
            case Allocate(text):
                said = f"allocate {' '.join(map(str, text))}"
            case Free(slot):
                said = f"free slot {slot}"
            case Clear():
                said = "clear"
            case _:
                said = tell_action(action)
        yield f"{number:2}  {escaped(said)}{loops}"


def _summary(results: Sequence[Checked]) -> Iterator[str]:
    states, transitions = sum(r.states for r in results), sum(r.transitions for r in results)
    spent = sum(r.seconds for r in results)
    yield f"{len(results)} scopes, {states:,} states, {transitions:,} transitions, {spent:.1f} s"
    reached = {mark for r in results for mark in r.marks}
    missed = [mark for mark in _possible_marks(results) if mark not in reached]
    if reached:
        yield f"marks, {len(reached)} of {len(reached) + len(missed)} reached"
        if missed:
            yield f"not reached: {', '.join(mark.lower() for mark in missed)}"


def _possible_marks(results: Iterable[Checked]) -> list[str]:
    from servecheck.explore.scopes import ServingScope
    from servecheck.marks import Mark, possible

    machines = [r.scope.system.machine for r in results if isinstance(r.scope, ServingScope)]
    able = {mark for m in machines for mark in possible(m.config, m.policy)}
    return [mark.name for mark in Mark if mark in able]


def _told(results: Sequence[Checked]) -> dict[str, object]:
    rows = [_row(result) for result in results]
    if len(rows) == 1:
        return {"command": "check", **rows[0]}
    worst = max(results, key=lambda r: list(SIGNS).index(r.verdict.value)).verdict
    return {
        "command": "check",
        "verdict": worst.value,
        "states": sum(r.states for r in results),
        "transitions": sum(r.transitions for r in results),
        "depth": max(r.depth for r in results),
        "seconds": round(sum(r.seconds for r in results), 3),
        "scopes": rows,
    }


def _row(result: Checked) -> dict[str, object]:
    return {
        "scope": result.scope.name,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "verdict": result.verdict.value,
        "seconds": round(result.seconds, 3),
        "ended": result.ended.value,
        "properties": {
            a.id: {
                "verdict": a.says.value,
                "asked": a.asked,
                **({"what": a.what, "program": list(_program(a))} if a.what else {}),
            }
            for a in result.answers
        },
        "marks": [mark.lower() for mark in result.marks],
    }


# --- files ---------------------------------------------------------------------------------


def _check_file(file: Path) -> None:
    """A file that is to be written can be, as far as that is known before the search.

    Raises:
        BadInput: it cannot.
    """
    name = escaped(str(file))
    if file.is_dir():
        raise BadInput(f"{name} is a folder; name a file in it")
    if not file.parent.is_dir():
        raise BadInput(f"{name}: there is no such folder; make it, or name another file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadInput(f"{name}: may not be written; name another file")


def _keep(result: Checked) -> dict[str, str]:
    """Write the shortest program of whatever fell and is not known to; where it is, or why not."""
    from servecheck.explore.check import Says
    from servecheck.explore.scopes import ServingScope
    from servecheck.trace.model import TraceError, Verdict
    from servecheck.trace.write import keep
    from servespec.machine import Action

    written: dict[str, str] = {}
    if not isinstance(result.scope, ServingScope):
        return written
    for a in result.answers:
        if a.says is Says.FALLS:
            actions = [x for x in (*a.program, *a.loop) if isinstance(x, Action)]
            verdict = Verdict("falls", a.id, a.what)
            machine = result.scope.system.machine
            try:
                kept = keep(FAILURES, f"{a.id}-search", machine, actions, verdict)
                written[a.id] = f"written {escaped(str(kept))}"
            except TraceError as error:
                written[a.id] = f"not written: {escaped(str(error))}"
    return written


def _draw(scope: Scope, limits: Limits, raw: bool, file: Path) -> None:
    from attrs import evolve

    from servecheck.explore.cache import Symmetry
    from servecheck.explore.graph import MOST, graph_of
    from servecheck.explore.scopes import PoolScope
    from servecheck.explore.search import search
    from servecheck.explore.system import Raw
    from servecheck.tell import tell_action
    from servecheck.view.write import dot, graphml, save

    if file.suffix not in (".dot", ".graphml"):
        raise BadInput(f"{file} is neither .dot nor .graphml; name one of them")
    most = evolve(limits, states=min(limits.states or MOST, MOST))
    if isinstance(scope, PoolScope):
        pool = scope.system(Symmetry.NONE if raw else Symmetry.SLOTS)
        of_pool = search(pool, edges=True, limits=most)
        drawn = graph_of(pool, of_pool, scope.name, _cache_label, str)
    elif raw:
        plain = Raw(scope.system)
        drawn = graph_of(
            plain, search(plain, edges=True, limits=most), scope.name, _label, tell_action
        )
    else:
        found = search(scope.system, edges=True, limits=most)
        drawn = graph_of(scope.system, found, scope.name, _label, tell_action)
    content = dot(drawn).encode() if file.suffix == ".dot" else graphml(drawn)
    save(content, file)


def _label(state: State) -> str:
    """Who is where: computed of its text, and its table."""
    runs = (f"{r.id} {r.computed}/{r.length} in {list(r.table)}" for r in state.running)
    waits = (f"{r.id} waits" for r in state.waiting)
    flying = (f"in flight: {len(plan.entries)}" for plan in state.in_flight)
    return "; ".join((*runs, *waits, *flying, f"free {list(state.pool.free)}"))


def _cache_label(cache: Cache) -> str:
    held = (f"{''.join(map(str, s.text))} in {list(s.table)}" for s in cache.slots if s.table)
    return "; ".join((*held, f"free {list(cache.pool.free)}"))


def _junit(results: Sequence[Checked], file: Path) -> None:
    """One suite a scope, one case a property; what is open, or never asked, counts as skipped."""
    from xml.etree import ElementTree as Xml

    from servecheck.view.write import save

    root = Xml.Element("testsuites", name="servecheck check")
    for result in results:
        failures = [a for a in result.answers if a.says.value == "falls"]
        skipped = [a for a in result.answers if a.says.value in ("vacuous", "undetermined")]
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=result.scope.name,
            tests=str(len(result.answers)),
            failures=str(len(failures)),
            errors="0",
            skipped=str(len(skipped)),
            time=f"{result.seconds:.3f}",
        )
        for a in result.answers:
            case = Xml.SubElement(suite, "testcase", classname=result.scope.name, name=a.id)
            if a in failures:
                told = "\n".join(_program(a))
                Xml.SubElement(case, "failure", message=a.what).text = told
            elif a in skipped:
                Xml.SubElement(case, "skipped", message=a.says.value)
    Xml.indent(root)
    save(Xml.tostring(root, encoding="utf-8", xml_declaration=True), file)


def _matrix(results: Sequence[Checked], file: Path) -> None:
    """The vacuity matrix: a property whose antecedent is true nowhere proves nothing there."""
    from servecheck.view.write import save

    names = list(dict.fromkeys(a.id for r in results for a in r.answers))
    asked = {(r.scope.name, a.id): a for r in results for a in r.answers}
    short = [r.scope.name.split("/")[-1] for r in results]
    rows = [["property", *short], ["---", *("---:" for _ in short)]]
    for name in names:
        row = [name]
        for result in results:
            a = asked.get((result.scope.name, name))
            known = "~ " if a is not None and a.says.value.startswith("falls") else ""
            row.append("" if a is None else f"{known}{a.asked:,}" if a.asked else "–")
        rows.append(row)
    text = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    save(text.encode(), file)
