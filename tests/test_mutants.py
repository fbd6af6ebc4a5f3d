"""A specification is worth what notices when it is wrong: ten faults, each in a copy of its own.

Every fault is one that real engines have had. The recordings of a real scheduler notice each one
that its profile can show. The properties notice what is wrong under every policy; a hit cap or
a place in the queue is another engine's legal choice, and only a recording can say whose.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).resolve().parents[1]


@frozen
class Mutant:
    """A change of one place of the specification."""

    name: str
    file: str
    right: str
    wrong: str
    recordings: bool = True
    """The recordings notice it."""
    properties: bool = True
    """A property falls."""

    def plant(self, spec: Path) -> None:
        """Change a copy of the specification; its text must have the place exactly once."""
        file = spec / "servespec" / self.file
        text = file.read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.file} has changed: plant {self.name} anew"
        file.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


MUTANTS = (
    Mutant(
        "a hit is left in the free queue",
        "pool.py",
        "free = tuple(b for b in pool.free if blocks[b].ref_count == 0)",
        "free = pool.free",
    ),
    Mutant(
        "a hash without its parent",
        "chain.py",
        "found.append(link(namespace, parent, text[end - block_size : end]))",
        "found.append(link(namespace, None, text[end - block_size : end]))",
    ),
    Mutant(
        "a table is released head first",
        "pool.py",
        "for b in release_walk(policy, table):",
        "for b in release_walk(policy, table)[::-1]:",
    ),
    Mutant(
        "a stale index entry after an eviction",
        "pool.py",
        "index = index.with_copies(key, tuple(c for c in index.copies[key] if c != b))",
        "pass",
    ),
    Mutant(
        "the index entry is deleted although a copy lives",
        "pool.py",
        "index = index.with_copies(key, tuple(c for c in index.copies[key] if c != b))",
        "index = index.with_copies(key, ())",
    ),
    Mutant(
        "hits are capped at n instead of n - 1",
        "policy.py",
        "(length - 1 if policy.hit_cap is HitCap.LAST_TOKEN else length) // block_size",
        "length // block_size",
        properties=False,
    ),
    Mutant(
        "the budget of an unscheduled victim is not given back",
        "moves.py",
        "tokens_left=p.tokens_left + given_back,",
        "tokens_left=p.tokens_left,",
        properties=False,  # WRK-1 falls, but on one walk of thousands
    ),
    Mutant(
        "blocks with rejected drafts are published",
        "machine.py",
        "pool, machine.policy, grown, grown.computed - ahead, machine.config,",
        "pool, machine.policy, grown, entry.start + len(entry.tokens), machine.config,",
    ),
    Mutant(
        "the salt is only in the first block",
        "chain.py",
        "before: Namespace | Chain = namespace if parent is None else parent",
        "namespace = namespace if parent is None else Namespace()\n"
        "    before: Namespace | Chain = namespace if parent is None else parent",
    ),
    Mutant(
        "a preempted request waits at the tail",
        "policy.py",
        "return 0 if preempted and policy.readmission is Readmission.HEAD else len(waiting)",
        "return len(waiting)",
        properties=False,
    ),
)


def noticed(spec: Path) -> tuple[bool, bool]:
    """Whether the recordings, and whether the properties, notice a specification."""
    path = os.pathsep.join(map(str, (spec, ROOT / "impl", ROOT)))
    told = subprocess.run(
        [sys.executable, "-m", "tests.notice"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    answer = json.loads(told)
    return answer["recording"] is not None, answer["property"] is not None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_specification_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec, ignore=shutil.ignore_patterns("__pycache__"))
    mutant.plant(spec)
    assert noticed(spec) == (mutant.recordings, mutant.properties)


def test_the_specification_itself_is_not(tmp_path: Path) -> None:
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec, ignore=shutil.ignore_patterns("__pycache__"))
    assert noticed(spec) == (False, False)
