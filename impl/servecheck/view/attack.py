"""The traces of the theory: a prompt read out of hit counts, and an answer that is wrong.

The attack (`servespec.theory.attack`) on a victim of four tokens, which still runs while somebody
without a namespace guesses. The picture of it shows the action `STEP`, at which a guess shares all
blocks of the victim's prompt.

    python -m servecheck.view.attack traces/theory
    servecheck render traces/theory/attack.jsonl --step 16 -o docs/attack.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from servecheck.trace.model import Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Schedule, Submit
from servespec.config import Config
from servespec.events import Event
from servespec.machine import Machine
from servespec.policy import VLLM_0_33
from servespec.theory.attack import attacked
from servespec.theory.output import answers, digest_model, wrong_output

MACHINE = Machine(
    Config(
        num_blocks=17, block_size=2, max_model_len=24, max_num_batched_tokens=24, max_num_seqs=2
    ),
    VLLM_0_33,
)
ALPHABET = (1, 2)
PROMPT = (1, 2, 2, 1)

ATTACK = attacked(MACHINE, PROMPT, ALPHABET, output=16)
ACTIONS: tuple[Action, ...] = tuple(ATTACK.actions)
MODEL = digest_model(5)


def _step_of_last_right_guess() -> int:
    """The pass that admits the guess which is the whole prompt."""
    right = next(
        n
        for n, a in enumerate(ACTIONS)
        if isinstance(a, Submit) and a.id != "victim" and a.prompt[: len(PROMPT)] == PROMPT
    )
    return ACTIONS.index(Schedule(), right)


STEP = _step_of_last_right_guess()


def wrong_answer(con_1r: Path) -> tuple[Machine, tuple[Action, ...], str]:
    """The run on which CON-1r falls, with the model's outputs in place of its own, up to the first
    wrong token; and what is wrong.

    Raises:
        LookupError: nothing is.
    """
    trace = read_trace(con_1r)
    machine, state = trace.machine, trace.machine.initial()
    actions: list[Action] = []
    events: list[Event] = []
    for action in trace.actions:
        said = answers(MODEL)(machine, state) if isinstance(action, Complete) else action
        moved = machine.apply(state, said)
        state = moved.state
        actions.append(said)
        events += moved.events
        for submit in actions:
            if isinstance(submit, Submit) and (what := wrong_output(MODEL, submit, events)):
                return machine, tuple(actions), what
    raise LookupError(f"{con_1r}: every answer is the model's own")


def main() -> int:
    (folder,) = map(Path, sys.argv[1:])
    record(folder / "attack.jsonl", MACHINE, ACTIONS, Verdict("holds"), snapshot_every=1)
    machine, actions, what = wrong_answer(folder.parent / "falls" / "CON-1r.jsonl")
    verdict = Verdict("falls", "OUT-1", what)
    record(folder / "OUT-1.jsonl", machine, actions, verdict, snapshot_every=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
