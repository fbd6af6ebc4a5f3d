"""What notices that the specification it is run against is broken: printed as one JSON object.

`test_mutants` runs this as a program of its own, with a changed copy of the specification first on
the path. `recording` is the first that no longer agrees, `property` the first that falls on a walk.
"""

from __future__ import annotations

import json

from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servespec.properties import PROPERTIES
from tests import recordings

WALKS, MOVES = 100, 60


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


def falls() -> str | None:
    """The first property that falls on random walks."""
    for seed in range(WALKS):
        try:
            Wanderer(seed, PROPERTIES.values()).go(MOVES)
        except PropertyFell as fell:
            return fell.property_id
    return None


if __name__ == "__main__":
    print(json.dumps({"recording": disagrees(), "property": falls()}))
