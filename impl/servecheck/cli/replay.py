"""`servecheck replay`: the specification, or an engine, along traces or recordings.

Theory of operation. What is done along traces is in `servecheck.cli.traced`. Of recordings of a
real scheduler PREFIX names one, or a folder of them. Each is read, replayed and told in one line;
the first step that does not agree is told field by field. A recording that cannot be read ends the
command: what was replayed before it has been told. With --json the same is gathered, and printed
once, however the command ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Command, Deviations, Engine, Json, Level
from servecheck.cli.terminal import BadInput, Exit, escaped, progress, say, say_json, width

if TYPE_CHECKING:
    from servecheck.recording import Recording
    from servecheck.recording.replay import Difference, Report

MOST_SHOWN = 12
"""Places of a difference, and warnings of a recording, that are printed; --json has all."""

NARROWEST = 30
"""Columns that a side of a difference gets even where the terminal has fewer."""

ASYNCHRONOUS = "asynchronous scheduling keeps two steps in flight, this machine one"

Told = dict[str, object]
"""What --json says of something."""


def command(
    trace: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRACE]...", help="Traces of servecheck, instead of recordings."),
    ] = None,
    recording: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PREFIX",
            help="A recording, such as traces/vllm-0.33.0/toy_reset, whose files are "
            "PREFIX.{workload,steps,events,state}.jsonl with config.json beside them; or a folder: "
            "all synchronous recordings in it. May be given several times.",
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the workload of the one recording from here."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the steps of the one recording from here."),
    ] = None,
    engine: Engine = None,
    process: Command = None,
    level: Level = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Hold the engine against what was recorded; the specification does not run.",
        ),
    ] = False,
    deviations: Deviations = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a line of a trace.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run the specification along traces, or along recordings of a real scheduler.

    What was asked, and what the model sampled, is input; what was decided, the events and all that
    was held must come out again. With --engine or --command an engine runs beside the
    specification and is compared with it after every action (lockstep); with --alone besides, the
    engine runs by itself and is compared with what was recorded. Along recordings --engine fast
    --alone runs the fast engine. Exit code 0: all of it agrees. 1: something differs; the first
    action or step that does is shown field by field. 3: an engine could not be checked, or not to
    the end.
    """
    from servecheck.cli import traced

    words = traced.Words(engine, process, level, deviations, alone)
    if schema:
        if trace or recording or words.any:
            raise BadInput("--schema goes alone")
        return _say_schema(as_json)
    if trace:
        if recording or workload or steps:
            raise BadInput("give traces, or --recording, not both")
        return traced.replay(trace, words, as_json)
    if not recording:
        raise BadInput("nothing to replay: give a TRACE, or --recording PREFIX")
    if words.any and words != traced.Words(engine="fast", alone=True):
        raise BadInput("along recordings only the fast engine goes: --engine fast --alone")
    call = _Call(as_json, "fast" if words.any else "spec")
    try:
        call.replay(recording, workload, steps)
    except (Exception, KeyboardInterrupt) as error:
        call.end(error)
        raise
    call.end(None)
    return Exit.FALLS if call.differing else Exit.HOLDS


def _say_schema(as_json: bool) -> int:
    from servecheck.trace.schema import schema_text, trace_schema

    if as_json:
        say_json(trace_schema())
    else:
        for line in schema_text().splitlines():
            say(line)
    return Exit.HOLDS


class _Call:
    """What one call of the command has found out so far."""

    def __init__(self, as_json: bool, serving: str) -> None:
        self.as_json = as_json
        self.serving = serving
        """Who runs: `servecheck.engines.whole`."""
        self.found: list[tuple[Path, bool]] = []
        self.told: list[Told] = []
        self.replayed = 0
        self.differing = 0

    def replay(self, given: list[Path], workload: Path | None, steps: Path | None) -> None:
        """Replay all that is meant, and tell of each recording at once."""
        for one in given:
            self.found += _prefixes(one)
        if (workload or steps) and not (len(self.found) == 1 and self.found[0][1]):
            raise BadInput("--workload and --steps go with one recording: give one PREFIX")
        for (prefix, named), label in zip(self.found, _labels(self.found), strict=True):
            self._replay(prefix, named, label, workload, steps)
        if not self.replayed:
            raise BadInput(f"there is nothing to replay: {ASYNCHRONOUS}")

    def _replay(
        self, prefix: Path, named: bool, label: str, workload: Path | None, steps: Path | None
    ) -> None:
        from servecheck.recording import read_recording

        run = read_recording(prefix, workload=workload, steps=steps)
        if run.config.async_scheduling and not named:
            self.told.append({"recording": str(prefix), "skipped": ASYNCHRONOUS})
            if not self.as_json:
                say(escaped(label), ": ", ("skipped", "yellow"), f", {ASYNCHRONOUS}")
            return
        report, warnings = _replayed(run, label, self.serving)
        self.replayed += 1
        self.differing += bool(report.differences)
        self.told.append(_told(prefix, run, report, warnings))
        if not self.as_json:
            _say(label, run, report, warnings)

    def end(self, failure: BaseException | None) -> None:
        """However it ends, what is known so far is told."""
        if self.as_json:
            whole = "falls" if self.differing else "holds" if failure is None else "undetermined"
            error = None
            if failure is not None:
                stopped = "interrupted " if isinstance(failure, KeyboardInterrupt) else ""
                error = f"{stopped}{failure}".rstrip()
            told = {"verdict": whole, "error": error, "recordings": self.told}
            say_json({"command": "replay", "engine": self.serving, **told})
        elif len(self.found) > 1 and self.replayed:
            skipped = len(self.told) - self.replayed
            left = len(self.found) - len(self.told)
            say(
                f"{self.replayed - self.differing} of {self.replayed} recordings agree",
                f"; {skipped} skipped" if skipped else "",
                f"; {left} not replayed" if left else "",
            )


def _prefixes(given: Path) -> Iterator[tuple[Path, bool]]:
    """The recordings that are meant, each with whether it was named itself."""
    if not given.is_dir():
        if not given.with_name("config.json").exists():
            raise BadInput(
                f"{given}: neither a folder nor a recording: no config.json is beside it"
            )
        yield given, True
        return
    suffix = ".events.jsonl"
    names = sorted(
        path.name.removesuffix(suffix)
        for path in given.iterdir()
        if path.is_file() and path.name.endswith(suffix) and path.name != suffix
    )
    if not names:
        raise BadInput(f"{given}: no recording is in this folder: it has no file NAME{suffix}")
    for name in names:
        yield given / name, False


def _labels(found: list[tuple[Path, bool]]) -> list[str]:
    """Names, unless two recordings share one."""
    names = Counter(prefix.name for prefix, _ in found)
    return [str(prefix) if names[prefix.name] > 1 else prefix.name for prefix, _ in found]


def _replayed(run: Recording, label: str, serving: str) -> tuple[Report, list[tuple[str, str]]]:
    """The report, and what to warn of: requests, and why each does not fit even alone."""
    from servecheck.engines.whole import WHOLE
    from servecheck.recording.replay import replay
    from servespec.actions import Action, Schedule
    from servespec.errors import SpecError
    from servespec.machine import Transition
    from servespec.plan import State

    if not run.steps:
        raise BadInput(f"{label}: it has no steps, so nothing can be compared; record it again")
    passes = 0

    def observe(_before: State, action: Action, _moved: Transition) -> None:
        nonlocal passes
        if isinstance(action, Schedule):
            passes += 1
            show(passes)

    try:
        warnings = list(_misfits(run))
        with progress(label, len(run.steps)) as show:
            return replay(run, observe, WHOLE[serving]), warnings
    except SpecError as error:
        raise BadInput(f"{label}: {error}") from None
    except KeyboardInterrupt:
        # The pass under way may yet differ: those before it have been compared.
        agreed = max(passes - 1, 0)
        raise KeyboardInterrupt(f"in {label}, of which {agreed} passes agree so far") from None


def _misfits(run: Recording) -> Iterator[tuple[str, str]]:
    """Requests that find no room even with the machine to themselves, and what they lack."""
    from servecheck.recording import Arrival
    from servecheck.recording.settings import config_of, policy_of
    from servespec.actions import Submit
    from servespec.config import usable_blocks
    from servespec.machine import Machine, fits_alone
    from servespec.request import peak

    machine = Machine(config_of(run.config), policy_of(run.config))
    config = machine.config
    usable = usable_blocks(config, machine.policy)
    for line in run.workload:
        if not isinstance(line, Arrival):
            continue
        submit = Submit(line.id, line.prompt, line.max_tokens)
        if fits_alone(machine, submit):
            continue
        length = len(submit.prompt)
        blocks = config.blocks_for(peak(config, length, submit.max_tokens))
        if length >= config.max_model_len:
            lack = f"its {length} tokens leave no room below max_model_len {config.max_model_len}"
        elif blocks > usable:
            lack = f"it can come to use {blocks} blocks, and {usable} can be handed out"
        else:
            lack = (
                f"its text can exceed the {config.max_num_batched_tokens} tokens of a pass, "
                "and prompts are not cut"
            )
        yield line.id, lack


# --- telling ---------------------------------------------------------------------------------


def _say(label: str, run: Recording, report: Report, warnings: list[tuple[str, str]]) -> None:
    agreed = f"{escaped(label)}: {report.agreed} of {report.steps} steps "
    states = "no states" if run.states is None else f"{report.states} states"
    compared = f"; compared {report.fields} fields, {report.messages} messages, {states}"
    if report.differences:
        at = report.differences[0].step
        say(f"{agreed}agree; ", (f"step {at} does not", "bold red"), compared)
    else:
        say(agreed, ("agree", "green"), compared)
    for request, lack in warnings[:MOST_SHOWN]:
        say("  ", ("warning", "yellow"), f": request {request!r} does not fit even alone: {lack}")
    if len(warnings) > MOST_SHOWN:
        say(f"  … and {len(warnings) - MOST_SHOWN} more requests that do not fit even alone")
    _say_differences(report.differences)


def _say_differences(differences: tuple[Difference, ...]) -> None:
    from servecheck.cli.differences import parts

    room = max(width() - len("    specified  "), NARROWEST)
    found = [
        (difference.place, part)
        for difference in differences
        for part in parts(difference.field, difference.recorded, difference.specified, room)
    ]
    for place, part in found[:MOST_SHOWN]:
        say("  ", (f"{place}, {part.path}", "bold"))
        say("    recorded   ", (part.recorded, "red"))
        say("    specified  ", (part.specified, "green"))
    if len(found) > MOST_SHOWN:
        say(f"  … and {len(found) - MOST_SHOWN} more places; --json shows all")


def _told(prefix: Path, run: Recording, report: Report, warnings: list[tuple[str, str]]) -> Told:
    from servecheck.cli.differences import plain

    return {
        "recording": str(prefix),
        "verdict": "falls" if report.differences else "holds",
        "steps": report.steps,
        "agreed": report.agreed,
        "fields": report.fields,
        "messages": report.messages,
        "states": None if run.states is None else report.states,
        "warnings": [{"request": request, "does_not_fit": lack} for request, lack in warnings],
        "differences": [
            {
                "step": difference.step,
                "place": difference.place,
                "field": difference.field,
                "recorded": plain(difference.recorded),
                "specified": plain(difference.specified),
            }
            for difference in report.differences
        ],
    }
