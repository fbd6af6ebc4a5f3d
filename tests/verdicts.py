"""What each property says of thousands of steps, right ones and spoilt ones, as it was once found.

Theory of operation. A property is code, and may be wrong in what it lets pass as well as in what it
calls a fall; and so may be what excuses one. So its whole answer is pinned: vacuous, held, fallen
or known to fall, a letter a step: on recordings of a real scheduler, on traces of known falls, on
runs with other choices, and on steps of these with one thing spoilt (`tests.test_properties`), none
of which depends on how the fuzzer draws. Runs are asked whole, for what a property remembers of
them; spoilt steps each by itself. A change of a property shows here as the steps on which it
answers otherwise. `python -m tests.verdicts` writes the file anew: read the difference before it is
kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from attrs import evolve

from servecheck.fuzz.draw import Seeded, pick
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
from servecheck.trace.lasso import WATCHED
from servecheck.trace.read import read_trace
from servecheck.watch import Watch
from servespec.actions import Action, Submit
from servespec.chain import Namespace
from servespec.config import Config
from servespec.machine import Machine, Transition, Universe
from servespec.plan import State
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    HeadOfLine,
    Impossible,
    Lookup,
    Publish,
    Release,
    StepMix,
    Victim,
    prioritised,
)
from servespec.properties import Property, Step, step_of
from tests.recordings import OWN, prefix
from tests.test_properties import SPOILS
from tests.test_recordings import SIZES

PINNED = Path(__file__).parent / "golden" / "verdicts.json"
FALLS = Path(__file__).resolve().parents[1] / "traces" / "falls"
SPOILT = 2500
"""Steps of the runs, each spoilt in one to two ways."""


COMING = (
    Submit("a", (0, 1, 0, 1, 1), 3),
    Submit("b", (0, 1, 0), 5, priority=1),
    Submit("c", (0, 1, 0, 1, 0, 0, 1), 2, Namespace(salt="s"), stop=(0,)),
)
SMALL = Config(7, 2, 8, 6, 2)
LATE = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)
OTHERS = (
    Machine(SMALL, LATE),
    Machine(SMALL, evolve(LATE, release=Release.DEFERRED)),
    Machine(evolve(SMALL, num_speculative_tokens=1, num_lookahead_tokens=1), LATE),
    Machine(evolve(SMALL, long_prefill_token_threshold=2, watermark=0.2), prioritised(LATE)),
    Machine(SMALL, evolve(LATE, step_mix=StepMix.PREFILL_FIRST, head_of_line=HeadOfLine.SKIP)),
    Machine(SMALL, evolve(LATE, admission=Admission.WHOLE_REQUEST, lookup=Lookup.NEWEST)),
    Machine(SMALL, evolve(LATE, victim=Victim.NONE, impossible=Impossible.REFUSE)),
    Machine(evolve(SMALL, num_blocks=9), RESERVED),
    Machine(SMALL, STATIC),
    Machine(SMALL, MINIATURE),
)
"""Choices that no recording has made."""


@cache
def runs() -> tuple[tuple[Step, ...], ...]:
    """The runs of the recordings that are part of the project, and of the known falls."""
    found: list[tuple[Step, ...]] = []
    for name in SIZES:
        if not (OWN / f"{name}.events.jsonl").exists():
            continue
        recording = read_recording(prefix(name))
        machine = Machine(config_of(recording.config), policy_of(recording.config))
        steps: list[Step] = []

        def note(
            before: State,
            action: Action,
            moved: Transition,
            machine: Machine = machine,
            steps: list[Step] = steps,
        ) -> None:
            steps.append(step_of(machine, before, action, moved))

        replay(recording, note)
        found.append(tuple(steps))
    for file in sorted(FALLS.glob("*.jsonl")):
        trace = read_trace(file)
        state, steps = trace.machine.initial(), []
        for action in trace.actions:
            steps.append(step_of(trace.machine, state, action, trace.machine.apply(state, action)))
            state = steps[-1].after
        found.append(tuple(steps))
    found += (wandered(machine, seed) for machine in OTHERS for seed in range(2))
    return tuple(found)


def wandered(machine: Machine, seed: int) -> tuple[Step, ...]:
    """A run of what is enabled, chosen by a seed: it stays the same whatever the fuzzer does."""
    universe = Universe(COMING, (0,))
    chance, state, steps = Seeded(seed), machine.initial(), list[Step]()
    for _ in range(60):
        action = pick(chance, tuple(machine.enabled(state, universe)))
        steps.append(step_of(machine, state, action, machine.apply(state, action)))
        state = steps[-1].after
    return tuple(steps)


@cache
def spoilt() -> tuple[Step, ...]:
    """Steps of the runs with something wrong in each."""
    chance, found = Seeded(0), []
    for _ in range(SPOILT):
        step = pick(chance, pick(chance, runs()))
        for _ in range(1 + chance.below(2)):
            step = pick(chance, SPOILS)(step, chance)
        found.append(step)
    return tuple(found)


def letter(watch: Watch, texts: list[str] | None = None) -> Callable[[Step], str]:
    """What the one property of a watch says of a step: vacuous, holds, falls, or falls and is known
    to. What falls say is noted, if anybody asks for it."""

    def said(step: Step) -> str:
        before = watch.checked.total()
        for fallen in watch.see_step(step):
            if texts is not None:
                texts.append(fallen.what)
            return "k" if fallen.known else "F"
        return "h" if watch.checked.total() > before else "-"

    return said


def on_runs(asked: Property) -> Iterator[str]:
    """What a property says of each run, from its start."""
    for run in runs():
        watch = Watch(run[0].machine, run[0].before, (asked,))
        yield "".join(map(letter(watch), run))


def on_spoilt(asked: Property) -> str:
    """What a property says of each spoilt step."""
    return "".join(letter(Watch(s.machine, s.before, (asked,)))(s) for s in spoilt())


def verdicts(name: str) -> dict[str, list[str]]:
    """All that a property says, in lines that a reader can compare."""
    asked = WATCHED[name]
    said = on_spoilt(asked)
    lines = [said[at : at + 100] for at in range(0, len(said), 100)]
    return {"runs": list(on_runs(asked)), "spoilt": lines}


def main() -> None:
    found = {name: verdicts(name) for name in WATCHED}
    PINNED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
