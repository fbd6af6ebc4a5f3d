"""The programs of the stories: ten faults of the zoo, each with the few actions that show it.

They are chosen by hand: not the shortest, but short, with names and numbers that a reader can
follow. Each is kept as a trace of the specification, by the name of its entry, and replayed.

    python -m servecheck.zoo.programs traces/stories
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from servecheck.cli.terminal import BadInput, Exit, prepare, say, settled
from servecheck.trace.model import Verdict
from servecheck.trace.write import replace
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import Namespace
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, Memory, Policy, Release, Sharing, prioritised


@frozen
class Program:
    """What is done to which machine."""

    machine: Machine
    actions: tuple[Action, ...]


def _program(
    policy: Policy, num_blocks: int, *actions: Action, budget: int = 8, drafts: int = 0
) -> Program:
    """On a machine of blocks of two tokens, the null block among them."""
    config = Config(
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=8,
        max_num_batched_tokens=budget,
        max_num_seqs=2,
        num_speculative_tokens=drafts,
    )
    return Program(Machine(config, policy), actions)


LEGAL = "legal"
"""The name of an adapter, and what somebody else gives as salt."""

PROGRAMS: dict[str, Program] = {
    "hit-stays-free": _program(
        VLLM_0_33,
        5,
        Submit("alice", (1, 2, 3), max_tokens=1),
        Schedule(),
        Complete((Output("alice", (4,)),)),
        Submit("bob", (1, 2, 5), max_tokens=2),
        Schedule(),
    ),
    "without-cache-all-is-there": _program(
        evolve(VLLM_0_33, sharing=Sharing.OFF),
        4,
        Submit("alice", (1, 2, 3), max_tokens=2),
        Schedule(),
        Complete((Output("alice", (4,)),)),
    ),
    "reset-keeps-names": _program(
        VLLM_0_33,
        4,
        Submit("alice", (1, 2, 3), max_tokens=1),
        Schedule(),
        Complete((Output("alice", (4,)),)),
        ResetCache(),
    ),
    "joined-up": _program(
        VLLM_0_33,
        5,
        Submit("alice", (1, 2, 3), max_tokens=1, namespace=Namespace(adapter=LEGAL)),
        Schedule(),
        Complete((Output("alice", (4,)),)),
        Submit("bob", (1, 2, 3), max_tokens=1, namespace=Namespace(salt=LEGAL)),
        Schedule(),
    ),
    "held-before-refused": _program(
        VLLM_0_33,
        4,
        Submit("alice", (1, 2, 3, 4, 5), max_tokens=2),
        Submit("bob", (1, 2, 3, 4, 6), max_tokens=2),
        Schedule(),
    ),
    "whole-prompt-published": _program(
        evolve(VLLM_0_33, memory=Memory.RESERVED),
        5,
        Submit("alice", (1, 2, 3, 4, 5), max_tokens=2),
        Schedule(),
        budget=2,
    ),
    "victim-stays-scheduled": _program(
        prioritised(VLLM_0_33),
        4,
        Submit("alice", (1,), max_tokens=4, priority=1),
        Schedule(),
        Complete((Output("alice", (2,)),)),
        Submit("bob", (5, 6), max_tokens=4),
        Schedule(),
        Complete((Output("alice", (3,)), Output("bob", (7,)))),
        Schedule(),
    ),
    "released-under-a-step": _program(
        evolve(VLLM_0_33, release=Release.DEFERRED),
        4,
        Submit("alice", (1, 2, 3), max_tokens=2),
        Schedule(),
        Abort("alice"),
    ),
    "drafts-in-the-next-block": _program(
        VLLM_0_33,
        5,
        Submit("alice", (1,), max_tokens=4),
        Submit("bob", (5,), max_tokens=4),
        Schedule(),
        Complete((Output("alice", (2,), drafts=(3,)), Output("bob", (6,)))),
        Schedule(),
        drafts=1,
    ),
    "told-without-namespace": _program(
        VLLM_0_33,
        5,
        Submit("alice", (1, 2, 3), max_tokens=2),
        Submit("bob", (1, 2, 3), max_tokens=2, namespace=Namespace(salt="bob's")),
        Schedule(),
    ),
}


USAGE = "python -m servecheck.zoo.programs FOLDER"


def main(arguments: Sequence[str]) -> int:
    """Write the traces into a folder.

    Raises:
        BadInput: none is named, or more than one.
        TraceError: one cannot be written.
    """
    if list(arguments) in (["-h"], ["--help"]):
        say(f"Usage: {USAGE}")
        return Exit.HOLDS
    if len(arguments) != 1 or not arguments[0] or arguments[0].startswith("-"):
        raise BadInput(f"one folder must be named: {USAGE}")
    for name, program in PROGRAMS.items():
        replace(
            Path(arguments[0]) / f"{name}.jsonl",
            program.machine,
            program.actions,
            Verdict("holds"),
            snapshot_every=1,
        )
    return Exit.HOLDS


if __name__ == "__main__":
    prepare()
    sys.exit(settled(lambda: main(sys.argv[1:])))
