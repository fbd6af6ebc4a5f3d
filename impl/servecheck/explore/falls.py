"""The falls that are known, each on a shortest run: found by exhaustive search, and committed.

Theory of operation. Each condition under which a property is known to fall (`Falls` of the
registry) has a scope here that is just large enough. A safety property is asked of every state and
transition in order of depth, so the first fall is on a shortest run of the scope; LIV-1 gives the
lasso with the fewest actions (`liveness`). Of the runs of that length a simple one is kept: early
arrivals, few tokens (`trace.shrink`). Requests are called r0, r1, … in the order in which they
first come; a name is given again where the loop needs it.

    python -m servecheck.explore.falls traces/falls            # writes every committed trace anew
    python -m servecheck.explore.falls traces/falls CON-1 …    # only these
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from servecheck.explore.asking import Asking
from servecheck.explore.axes import kind
from servecheck.explore.check import shortest
from servecheck.explore.liveness import Fits, liveness
from servecheck.explore.scopes import serving
from servecheck.explore.search import search
from servecheck.explore.serving import Serving
from servecheck.trace.lasso import LASSO, WATCHED
from servecheck.trace.model import Verdict
from servecheck.trace.shrink import fall_in, falls, shrink
from servecheck.trace.write import record
from servespec.actions import Abort, Action, Complete, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    HeadOfLine,
    Policy,
    StepMix,
    prioritised,
)

Actions = tuple[Action, ...]


@frozen
class KnownFall:
    """A scope in which a property falls."""

    property_id: str
    name: str
    """Of the trace, whose file is NAME.jsonl."""
    system: Serving

    def shortest(self) -> Actions:
        """A run with the fewest actions, of those of this scope, on whose last action the property
        falls.

        Raises:
            LookupError: the property does not fall in this scope.
        """
        name, system = self.property_id, self.system
        found = _lasso(system) if name == LASSO.id else first_fall(system, name)
        return shrink(system.machine, named_anew(found), falls(system.machine, name))

    def commit(self, folder: Path) -> Path:
        """Write the trace of a shortest run, with a snapshot on every line.

        Raises:
            LookupError: the property does not fall in this scope.
            TraceError: the file cannot be written.
        """
        machine, actions = self.system.machine, self.shortest()
        path = folder / f"{self.name}.jsonl"
        what = fall_in(machine, self.property_id, actions)
        record(path, machine, actions, Verdict("falls", self.property_id, what), snapshot_every=1)
        return path


def first_fall(system: Serving, property_id: str) -> Actions:
    """A shortest run on whose last action a property of states, transitions or histories falls.

    Raises:
        LookupError: it falls on none.
    """
    asking = Asking(system, (WATCHED[property_id],))
    found = search(asking, asking, stops=lambda name: True)
    if not found.falls:
        raise LookupError(f"{property_id} falls on no run of this scope")
    return shortest(asking, found, found.falls[0])


def _lasso(system: Serving) -> Actions:
    lasso = liveness(system, fits=Fits.TAGGED).lasso
    if lasso is None:
        raise LookupError("LIV-1 falls on no run of this scope")
    return lasso.actions


def named_anew(actions: Sequence[Action]) -> Actions:
    """Requests by the order in which their names first occur."""
    names: dict[str, str] = {}

    def name(id: str) -> str:
        return names.setdefault(id, f"r{len(names)}")

    found = list[Action]()
    for action in actions:
        match action:
            case Submit() | Abort():
                action = evolve(action, id=name(action.id))
            case Complete(outputs):
                action = Complete(tuple(evolve(o, id=name(o.id)) for o in outputs))
        found.append(action)
    return tuple(found)


# --- the scopes ----------------------------------------------------------------------------


def _scope(config: Config, policy: Policy, *kinds: Submit, live: int = 2) -> Serving:
    return Serving(Machine(config, policy), kinds, live, aborts=False)


def _tiny(axis: str) -> Serving:
    return serving("tiny", axis).system


_UNSCHEDULED = _scope(
    Config(6, 1, 5, 3, 2, long_prefill_token_threshold=2),
    prioritised(VLLM_0_33),
    kind("0000", 1),
    evolve(kind("0", 2), with_last=True),
)
"""A victim must have been given two blocks in the very pass, and others room in its budget."""


def _prefill_first(budget: int) -> Serving:
    policy = evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST)
    return _scope(Config(3, 1, 3, budget, 2), policy, kind("0", 2), kind("0", 1))


_IN_PLACE = _scope(Config(2, 2, 3, 3, 2), MINIATURE, kind("00", 1), kind("0", 1))
_PASSED_OVER = _scope(
    Config(4, 1, 4, 2, 2),
    evolve(VLLM_0_33, head_of_line=HeadOfLine.SKIP),
    kind("00", 1),
    kind("0", 2),
    kind("0", 1),
    live=3,
)

KNOWN_FALLS = (
    KnownFall("CON-1", "CON-1", _UNSCHEDULED),
    KnownFall("CON-1r", "CON-1r", _UNSCHEDULED),
    KnownFall("CON-3", "CON-3", _UNSCHEDULED),
    KnownFall("BUD-2", "BUD-2", _tiny("draft-budget")),
    KnownFall("BUD-2", "BUD-2-prefill-first", _prefill_first(budget=1)),
    KnownFall("BUD-2", "BUD-2-no-victim", _tiny("no-victim")),
    KnownFall("BUD-2", "BUD-2-given-back", _tiny("given-back")),
    KnownFall("EVI-1", "EVI-1", _IN_PLACE),
    KnownFall("LIV-1", "LIV-1", _tiny("full-prompt")),
    KnownFall("LIV-1", "LIV-1-larger-than-pool", _tiny("small-pool")),
    KnownFall("LIV-1", "LIV-1-no-chunks", _tiny("uncut")),
    KnownFall("LIV-1", "LIV-1-no-victim", _tiny("deadlock")),
    KnownFall("LIV-1", "LIV-1-prefill-first", _prefill_first(budget=2)),
    KnownFall("LIV-1", "LIV-1-passed-over", _PASSED_OVER),
    KnownFall("LIV-1", "LIV-1-livelock", _tiny("together")),
)
"""One for each condition under which a property is known to fall."""


def main(folder: str = "", *names: str) -> None:
    known = [fall.name for fall in KNOWN_FALLS]
    if not folder or not set(names) <= set(known):
        raise SystemExit(
            f"usage: python -m servecheck.explore.falls FOLDER [{' | '.join(known)}] …"
        )
    for fall in KNOWN_FALLS:
        if not names or fall.name in names:
            print(fall.commit(Path(folder)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
