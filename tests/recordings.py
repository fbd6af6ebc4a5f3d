"""Where the tests find recordings of the real scheduler.

Short ones are part of the project. All others are looked for in the folder that
SERVECHECK_RECORDINGS names, then beside the repository; a test of one that is nowhere is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_RELEASE = "vllm-0.33.0"
_ROOT = Path(__file__).resolve().parents[1]
_SUFFIX = ".events.jsonl"

OWN = _ROOT / "traces" / _RELEASE
"""The recordings that are part of the project."""


def folders() -> list[Path]:
    """All folders with recordings, in the order in which they are asked for one."""
    named = os.environ.get("SERVECHECK_RECORDINGS")
    beside = _ROOT.parent / "shared/traces/kv_events" / _RELEASE
    places = [OWN, *([Path(named)] if named else []), beside]
    return [place for place in places if place.is_dir()]


def names_in(folder: Path) -> list[str]:
    """The recordings that have files in a folder; every run has events."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))


def prefixes() -> dict[str, Path]:
    """Every recording that can be found, by its name."""
    found: dict[str, Path] = {}
    for folder in folders():
        for name in names_in(folder):
            found.setdefault(name, folder / name)
    return found


def prefix(name: str) -> Path:
    """The recording `name`; skips the test if there is none."""
    found = prefixes().get(name)
    if found is None:
        pytest.skip(f"no recording {name}: set SERVECHECK_RECORDINGS to the folder that has it")
    return found
