"""What notices that the specification it is run against is broken: printed as one JSON object.

`test_mutants` runs this as a program of its own, with a changed copy of the specification first on
the path. `recording` is the first that no longer agrees, `property` the first that falls on a walk.

    python -m tests.notice                        # all recordings, all properties, all policies
    python -m tests.notice QUE-1 [VLLM_0_33]      # this property alone, on walks [under a policy]
    python -m tests.notice TOK-1 toy_giveback     # … on a recording, as far as it agrees
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
from servecheck.watch import Watch
from servespec.machine import Action, Machine, Transition
from servespec.plan import State
from servespec.policy import PROFILES, VLLM_0_33, Policy, prioritised
from servespec.properties import PROPERTIES
from tests import recordings

WALKS, MOVES = 100, 60
POLICIES = {**PROFILES, "PRIORITY": prioritised(VLLM_0_33)}


def disagrees() -> str | None:
    """The first of the project's own recordings that the specification does not reproduce."""
    for name in recordings.names_in(recordings.OWN):
        recording = read_recording(recordings.OWN / name)
        try:
            differs = bool(replay(recording).differences)
        except Exception:  # whatever a broken specification raises, it is noticed
            differs = True
        if differs:
            return name
    return None


def falls(*names: str, policy: Policy | None = None, walks: int = WALKS) -> str | None:
    """The first property that falls on random walks, of all or of those that are named."""
    asked = [p for name, p in PROPERTIES.items() if name in (names or PROPERTIES)]
    for seed in range(walks):
        try:
            Wanderer(seed, asked, policy=policy).go(MOVES)
        except PropertyFell as fell:
            return fell.property_id
    return None


def falls_along(recording: Path, name: str) -> str | None:
    """The property, if it falls on what the specification makes of a recording."""
    fallen: set[str] = set()
    watches: list[Watch] = []
    run = read_recording(recording)

    def observe(before: State, action: Action, moved: Transition) -> None:
        if not watches:
            machine = Machine(config_of(run.config), policy_of(run.config))
            watches.append(Watch(machine, before, (PROPERTIES[name],)))
        fallen.update(f.property.id for f in watches[0].see(before, action, moved) if not f.known)

    replay(run, observe)
    return name if name in fallen else None


def main(name: str = "", on: str = "") -> None:
    if on in recordings.names_in(recordings.OWN):
        print(json.dumps({"property": falls_along(recordings.OWN / on, name)}))
    elif name:
        print(json.dumps({"property": falls(name, policy=POLICIES.get(on), walks=4 * WALKS)}))
    else:
        print(json.dumps({"recording": disagrees(), "property": falls()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
