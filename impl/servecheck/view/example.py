"""The small example of the pictures: three requests share a system prompt.

An earlier request has left its answer in the cache behind that prompt, and one of the three has
computed a block that another one had computed already: the hit cap lets no request share the block
that holds the last token of its prompt. `python -m servecheck.view.example FILE` writes the trace.
"""

from __future__ import annotations

import sys
from pathlib import Path

from servecheck.trace.model import Verdict
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33

MACHINE = Machine(
    Config(
        num_blocks=13, block_size=4, max_model_len=32, max_num_batched_tokens=32, max_num_seqs=4
    ),
    VLLM_0_33,
)

SYSTEM = (1, 2, 3, 4, 5, 6, 7, 8)
QUESTION = (11, 12, 13, 14)

ACTIONS: tuple[Action, ...] = (
    Submit("dan", (*SYSTEM, 21, 22, 23, 24, 25), max_tokens=1),
    Schedule(),
    Complete((Output("dan", (26,)),)),
    Submit("ann", (*SYSTEM, *QUESTION, 15, 16), max_tokens=4),
    Submit("bob", (*SYSTEM, *QUESTION), max_tokens=4),
    Submit("cyd", (*SYSTEM, 31, 32, 33), max_tokens=4),
    Schedule(),
    Complete((Output("ann", (17,)), Output("bob", (18,)), Output("cyd", (34,)))),
    Schedule(),
    Complete((Output("ann", (19,)), Output("bob", (20,)), Output("cyd", (35,)))),
)


def main() -> int:
    (path,) = sys.argv[1:]
    record(Path(path), MACHINE, ACTIONS, Verdict("holds"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
