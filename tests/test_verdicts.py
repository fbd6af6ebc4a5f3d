"""Every property answers as it did: on what was recorded, on known falls, and on spoilt steps."""

from __future__ import annotations

import json
from functools import cache

import pytest

from servecheck.trace.lasso import WATCHED
from tests.verdicts import PINNED, on_runs, on_spoilt, runs, spoilt

NAMES = tuple(WATCHED)
ASKED = spoilt()
"""Made as this file is read: what a property says of a step must not depend on how it was made."""


@cache
def pinned() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(PINNED.read_text(encoding="utf-8"))
    return found


def test_every_property_is_pinned() -> None:
    assert set(pinned()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_of_runs_it_says_what_it_said(name: str) -> None:
    said = list(on_runs(WATCHED[name]))
    assert len(said) == len(runs())
    assert said == pinned()[name]["runs"], "if this is meant: python -m tests.verdicts"


@pytest.mark.parametrize("name", NAMES)
def test_of_spoilt_steps_it_says_what_it_said(name: str) -> None:
    said = on_spoilt(WATCHED[name])
    assert len(said) == len(ASKED)
    assert said == "".join(pinned()[name]["spoilt"]), "if this is meant: python -m tests.verdicts"


def test_what_is_pinned_is_of_every_kind() -> None:
    """Every property holds somewhere and, spoilt, falls somewhere."""
    for name, said in pinned().items():
        assert "h" in "".join(said["runs"] + said["spoilt"]), name
        assert "F" in "".join(said["spoilt"] + said["runs"]), name
        if WATCHED[name].falls:
            assert "k" in "".join(said["runs"]), name
