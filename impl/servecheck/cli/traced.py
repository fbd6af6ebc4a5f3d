"""What `servecheck replay TRACE` does: the specification, an engine, or both, along traces.

Theory of operation. A trace is run in one of three ways; each comes to an `Outcome`: a verdict,
what --json says, and lines.

    spec        the specification along the trace, every property asked
    alone       an engine along the trace, held against what was recorded
    lockstep    the first, and then the engine beside the specification

However it ends, what is known so far is told. The worst verdict decides the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from servecheck.cli.terminal import BadInput, Exit, Part, brief, escaped, say, say_json, width

if TYPE_CHECKING:
    from servecheck.engines.whole import MakeWhole
    from servecheck.fuzz.summary import Summary
    from servecheck.lockstep.alone import Alone
    from servecheck.lockstep.subject import Subject
    from servecheck.trace.model import Trace
    from servecheck.trace.replay import TraceReport

Told = dict[str, object]
Said = tuple[Part, ...]
FALLEN = ("falls", "diverges")


@frozen
class Words:
    """Which engine, in the words of the command line, and how it goes."""

    engine: str | None = None
    command: str | None = None
    level: str | None = None
    deviations: Path | None = None
    alone: bool = False

    @property
    def any(self) -> bool:
        return self != Words()

    @property
    def mode(self) -> str:
        return "alone" if self.alone else "lockstep" if self.any else "spec"


@frozen
class Outcome:
    """What came of one trace."""

    verdict: str
    told: Told
    lines: tuple[Said, ...]


Runs = Callable[["Trace"], Outcome]


def replay(traces: list[Path], words: Words, as_json: bool) -> int:
    """Replay traces. FALLS if one differs, or its verdict does not come out again; UNDETERMINED if
    none does and an engine could not be checked."""
    from servecheck.trace.read import read_trace

    outcomes: list[Outcome] = []
    failure: BaseException | None = None
    try:
        with _running(words) as run:
            for place in traces:
                outcome = run(read_trace(place))
                outcomes.append(outcome)
                if not as_json:
                    for line in outcome.lines:
                        say(*line)
    except (Exception, KeyboardInterrupt) as error:
        failure = error
        raise
    finally:
        verdict = _worst([outcome.verdict for outcome in outcomes], failure is None)
        if as_json and (failure is None or outcomes):
            say_json(
                {
                    "command": "replay",
                    "mode": words.mode,
                    "verdict": verdict,
                    "error": None if failure is None else str(failure) or "interrupted",
                    "traces": [outcome.told for outcome in outcomes],
                }
            )
    return {"holds": Exit.HOLDS, "falls": Exit.FALLS}.get(verdict, Exit.UNDETERMINED)


def _worst(verdicts: list[str], whole: bool) -> str:
    if any(verdict in FALLEN for verdict in verdicts):
        return "falls"
    return "holds" if whole and set(verdicts) <= {"holds"} else "undetermined"


@contextmanager
def _running(words: Words) -> Iterator[Runs]:
    """How a trace is run."""
    if not words.any:
        yield _by_spec
        return
    if words.engine is None and words.command is None:
        raise BadInput("--alone, --level and --deviations are about an engine; name it by --engine")
    if words.alone and words.deviations is not None:
        raise BadInput("--deviations are from the specification; they do not go with --alone")
    from servecheck.cli.engines import fast_engine, subject_of
    from servecheck.cli.fuzz import read_register

    known = () if words.alone else read_register(words.deviations)
    with subject_of(words.engine, words.command, words.level, known) as subject:
        whole = fast_engine(words.engine) if words.alone and words.level is None else None
        if whole is not None:
            yield lambda trace: _by_fast_engine(trace, words.engine or "fast", whole)
        elif words.alone:
            yield lambda trace: _by_engine(subject, trace)
        else:
            yield lambda trace: _beside(subject, trace, words)


# --- the specification ----------------------------------------------------------------------


def _by_spec(trace: Trace, beside: bool = False) -> Outcome:
    from servecheck.lockstep.report import LOCKSTEP
    from servecheck.trace.replay import replay_trace

    report = replay_trace(trace)
    lines = list(_spec_lines(trace, report))
    if not beside and trace.verdict is not None and trace.verdict.property == LOCKSTEP:
        lines.append(("  this is the specification alone; what the engine did shows",))
        lines.append((f"  `servecheck replay --engine … {brief(str(trace.path))}`",))
    good = report.agrees and report.reproduced is not False
    return Outcome("holds" if good else "falls", _spec_told(trace, report), tuple(lines))


def _spec_told(trace: Trace, report: TraceReport) -> Told:
    fallen = {f.fallen.property.id: {"action": f.n, "what": f.fallen.what} for f in report.fallen}
    return {
        "trace": str(trace.path),
        "verdict": "holds" if report.agrees and report.reproduced is not False else "falls",
        "actions": report.actions,
        "agreed": report.agreed,
        "fallen": fallen,
        "recorded": None if report.recorded is None else report.recorded.property,
        "reproduced": report.reproduced,
        "checked": dict(sorted(report.checked.items())),
        "marks": {mark.name.lower(): count for mark, count in report.marks.items()},
        "differences": list(_differences_told(report, "specified")),
    }


def _differences_told(report: TraceReport, other: str) -> Iterator[Told]:
    from servecheck.cli.differences import plain

    for d in report.differences:
        values = {"recorded": plain(d.recorded), other: plain(d.specified)}
        yield {"line": d.line, "action": d.n, "field": d.field, **values}


def _spec_lines(trace: Trace, report: TraceReport) -> Iterator[Said]:
    yield (f"{brief(str(trace.path))}: {report.agreed} of {report.actions} actions agree",)
    seen = set()
    for f in report.fallen:
        if f.fallen.property.id not in seen:
            seen.add(f.fallen.property.id)
            known = ", as the registry knows" if f.fallen.known else ""
            what = brief(f.fallen.what)
            yield (f"  {f.fallen.property.id} falls at action {f.n}{known}: {what}",)
    if report.recorded is not None and report.reproduced is not None:
        again = "comes out again" if report.reproduced else "does not come out again"
        name = f" {brief(report.recorded.property)}" if report.recorded.property else ""
        yield (f"  the recorded verdict, {report.recorded.verdict}{name}, {again}",)
    yield from _difference_lines(report, "specified")


def _difference_lines(report: TraceReport, other: str) -> Iterator[Said]:
    from servecheck.cli.differences import parts

    for d in report.differences:
        yield (f"  line {d.line}, action {d.n}, {escaped(d.field)}",)
        for part in parts(d.field, d.recorded, d.specified, max(width() - 18, 20)):
            yield ("    recorded   ", escaped(part.recorded))
            yield (f"    {other:<11}", escaped(part.specified))


# --- an engine alone ------------------------------------------------------------------------


def _by_fast_engine(trace: Trace, name: str, make: MakeWhole) -> Outcome:
    """Its events and its whole state are told in the words of a trace, so all of it is compared."""
    from servecheck import __version__
    from servecheck.trace.replay import replay_trace

    report = replay_trace(trace, watch=False, make=make)
    verdict = "holds" if report.agrees else "falls"
    told: Told = {
        "trace": str(trace.path),
        "verdict": verdict,
        "engine": {"name": name, "version": __version__, "level": "state"},
        "actions": report.actions,
        "agreed": report.agreed,
        "compared": {"events": report.done, "digest": report.done},
        "not_seen": {},
        "differences": list(_differences_told(report, "seen")),
    }
    first = (
        f"{brief(str(trace.path))}: {name} {__version__} does {report.agreed} of {report.actions} "
        "actions as recorded; compared: events and digest of the whole state",
    )
    return Outcome(verdict, told, (first, *_difference_lines(report, "seen")))


def _by_engine(subject: Subject, trace: Trace) -> Outcome:
    from servecheck.lockstep.alone import alone

    found = alone(subject, trace)
    said = found.engine
    told: Told = {
        "trace": str(trace.path),
        "verdict": found.verdict,
        "engine": None
        if said is None
        else {"name": said.name, "version": said.version, "level": said.level.name.lower()},
        "actions": found.actions,
        "agreed": found.agreed,
        "compared": dict(sorted(found.compared.items())),
        "not_seen": dict(sorted(found.unseen.items())),
        "stopped": found.stopped,
        "differences": [
            {"action": found.agreed, "field": d.field, "recorded": recorded, "seen": seen}
            for d in found.differences
            for recorded, seen in (_sides(d.expected, d.observed),)
        ],
    }
    return Outcome(found.verdict, told, tuple(_alone_lines(trace, found)))


def _sides(recorded: object, seen: object) -> tuple[object, object]:
    from servecheck.cli.differences import plain

    return plain(recorded), plain(seen)


def _alone_lines(trace: Trace, found: Alone) -> Iterator[Said]:
    from servecheck.cli.differences import parts
    from servecheck.engines.protocol import Level
    from servecheck.tell import tell_action

    engine = "the engine" if found.engine is None else f"{found.engine.name} {found.engine.version}"
    unseen = ", ".join(sorted(found.unseen)) or "nothing"
    yield (
        f"{brief(str(trace.path))}: {brief(engine)} does {found.agreed} of {found.actions} actions "
        f"as recorded; {found.compared.total():,} fields compared, not seen: {brief(unseen)}",
    )
    if found.stopped is not None:
        yield ("  ", ("undetermined", "bold yellow"), f": {brief(found.stopped)}")
    if not found.repeated:
        yield ("  ", ("nondeterministic", "bold yellow"), ": a second engine did not do the same")
    scheduled = found.engine is not None and found.engine.level >= Level.STEPS
    if scheduled and found.agreed < found.actions:
        line = trace.lines[found.agreed]
        yield (f"  action {line.n}: {brief(tell_action(line.action))}",)
    for d in found.differences:
        yield (f"  {brief(d.field)}",)
        for part in parts(d.field, d.expected, d.observed, max(width() - 18, 20)):
            yield ("    recorded   ", escaped(part.recorded))
            yield ("    seen       ", escaped(part.specified))


# --- both -----------------------------------------------------------------------------------


def _beside(subject: Subject, trace: Trace, words: Words) -> Outcome:
    import shlex

    from servecheck.cli.fuzz import engine_words
    from servecheck.engines.protocol import Unsupported
    from servecheck.fuzz.retry import rerun

    by_spec = _by_spec(trace, beside=True)
    engine = engine_words(words.engine, words.command, words.level)
    again = shlex.join(["servecheck", "replay", *engine, str(trace.path)])
    try:
        found = rerun(trace, subject, again)
    except Unsupported as error:
        verdict, what = "undetermined", str(error)
        told: Told = {"verdict": verdict, "unable": what}
        lines: list[Said] = [("  ", (verdict, "bold yellow"), f": {brief(what)}")]
    else:
        verdict, told, lines = found.verdict.value, _lockstep_told(found), list(_lines(found))
    whole = by_spec.verdict if by_spec.verdict != "holds" else verdict
    both: Told = {**by_spec.told, "verdict": whole, "lockstep": told}
    return Outcome(whole, both, (*by_spec.lines, *lines))


def _lockstep_told(found: Summary) -> Told:
    from servecheck.cli.summary import engine_told

    report = () if found.report is None else found.report.lines
    return {
        "verdict": found.verdict.value,
        "engine": None if found.seen is None else engine_told(found.seen),
        "unable": found.unable,
        "notes": list(found.notes),
        "report": list(report),
        "fall": None if found.fall is None else found.fall.property_id,
    }


def _lines(found: Summary) -> Iterator[Said]:
    from servecheck.cli.summary import STYLES, UNSURE, engine_line, evidence, why

    verdict = found.verdict.value
    if found.seen is not None:
        yield (f"  {engine_line(found.seen)}",)
    if verdict != "holds":
        yield ("  ", (verdict, STYLES.get(verdict, UNSURE)), f": {brief(why(found))}")
    for line in evidence(found):
        yield (line,)
