"""A specification is worth what notices when it is wrong: faults, each in a copy of its own.

The first ten are faults that real engines have had. The recordings of a real scheduler notice each
one that its profile can show. The properties notice every one, whatever the policy: each fault here
makes the property that is named for it fall, though it is asked alone.
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
    seen_by: str
    """The property that falls, asked alone."""
    on: str = ""
    """The policy of the walks, or the recording, on which it does; else walks of any policy."""

    def plant(self, spec: Path) -> None:
        """Change a copy of the specification; its text must have the place exactly once."""
        file = spec / "servespec" / self.file
        text = file.read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.file} has changed: plant {self.name} anew"
        file.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


REAL = (
    Mutant(
        "a hit is left in the free queue",
        "pool.py",
        "free = tuple(b for b in pool.free if blocks[b].ref_count == 0)",
        "free = pool.free",
        "OWN-1",
    ),
    Mutant(
        "a hash without its parent",
        "chain.py",
        "found.append(link(namespace, parent, text[end - block_size : end]))",
        "found.append(link(namespace, None, text[end - block_size : end]))",
        "IDX-3",
    ),
    Mutant(
        "a table is released head first",
        "pool.py",
        "for b in release_walk(policy, table):",
        "for b in release_walk(policy, table)[::-1]:",
        "LRU-3",
    ),
    Mutant(
        "a stale index entry after an eviction",
        "pool.py",
        "index = index.with_copies(key, tuple(c for c in index.copies[key] if c != b))",
        "pass",
        "IDX-1",
    ),
    Mutant(
        "the index entry is deleted although a copy lives",
        "pool.py",
        "index = index.with_copies(key, tuple(c for c in index.copies[key] if c != b))",
        "index = index.with_copies(key, ())",
        "IDX-4",
    ),
    Mutant(
        "hits are capped at n instead of n - 1",
        "policy.py",
        "(length - 1 if policy.hit_cap is HitCap.LAST_TOKEN else length) // block_size",
        "length // block_size",
        "CON-2",
    ),
    Mutant(
        "the budget of an unscheduled victim is not given back",
        "moves.py",
        "tokens_left=p.tokens_left + given_back,",
        "tokens_left=p.tokens_left,",
        "TOK-1",
        "toy_giveback",
    ),
    Mutant(
        "blocks with rejected drafts are published",
        "machine.py",
        "pool, machine.policy, grown, grown.computed - ahead, machine.config,",
        "pool, machine.policy, grown, entry.start + len(entry.tokens), machine.config,",
        "PUB-1",
    ),
    Mutant(
        "the salt is only in the first block",
        "chain.py",
        "before: Namespace | Chain = namespace if parent is None else parent",
        "namespace = namespace if parent is None else Namespace()\n"
        "    before: Namespace | Chain = namespace if parent is None else parent",
        "APPLY-1",  # a link to a parent of another namespace is refused
    ),
    Mutant(
        "a preempted request waits at the tail",
        "policy.py",
        "return 0 if preempted and policy.readmission is Readmission.HEAD else len(waiting)",
        "return len(waiting)",
        "QUE-1",
    ),
)


OTHERS = (
    Mutant(
        "the last block that is taken stays in the free queue",
        "pool.py",
        "pool.free[count:], index), taken",
        "pool.free[max(count - 1, 0) :], index), taken",
        "OWN-4",
    ),
    Mutant(
        "an urgent request waits behind its equals' juniors",
        "policy.py",
        "mine = (request.priority, request.arrival, request.id)",
        "mine = (request.priority, -request.arrival, request.id)",
        "QUE-1",
        "PRIORITY",
    ),
    Mutant(
        "an admitted request runs before the others",
        "moves.py",
        "place = len(p.state.running)\n    return _plan(moved, place,",
        "return _plan(moved, 0,",
        "QUE-1",
    ),
    Mutant(
        "publication stops one block early",
        "moves.py",
        "upto = request.published, min(tokens // config.block_size, len(request.keys))",
        "upto = request.published, min(tokens // config.block_size, len(request.keys) - 1)",
        "PUB-1",
    ),
    Mutant(
        "the keys of a text are not known to its end",
        "request.py",
        "if longer.length < (len(known) + 1) * size:",
        "if longer.length <= (len(known) + 1) * size:",
        "PUB-1",
    ),
    Mutant(
        "a new copy stands before the older ones",
        "pool.py",
        "index = index.with_copies(key, (*index.copies.get(key, ()), b))",
        "index = index.with_copies(key, (b, *index.copies.get(key, ())))",
        "IDX-4",
    ),
    Mutant(
        "one token too few is scheduled",
        "scheduler.py",
        "return max(0, min(rest, p.threshold or rest, p.tokens_left, cap))",
        "return max(0, min(max(rest - 1, 1), p.threshold or rest, p.tokens_left, cap))",
        "TOK-1",
    ),
    Mutant(
        "the running list is gone through from its end",
        "moves.py",
        "return self.state.running if self.phases[0] is Phase.RUNNING else self.state.waiting",
        "running = self.state.running\n"
        "        if self.cursor == 0 and len(running) == 2 and not self.entries:\n"
        "            running = running[::-1]\n"
        "        return running if self.phases[0] is Phase.RUNNING else self.state.waiting",
        "TOK-1",
    ),
    Mutant(
        "outputs are handled in another order",
        "machine.py",
        "for entry in plan.entries:\n        request = None if",
        "for entry in plan.entries[::-1]:\n        request = None if",
        "REQ-1",
    ),
    Mutant(
        "the threshold is not waived",
        "scheduler.py",
        "threshold=0 if alone else config.long_prefill_token_threshold,",
        "threshold=config.long_prefill_token_threshold,",
        "TOK-1",
    ),
    Mutant(
        "a batch that prefills is padded",
        "scheduler.py",
        "and not any(entry.was_prefilling for entry in ran)",
        "and ran is not None",
        "TOK-1",
        "VLLM_0_33",
    ),
    Mutant(
        "stop ids are dropped at Submit",
        "request.py",
        "        submit.stop,\n",
        "        (),\n",
        "REQ-1",
    ),
    Mutant(
        "the namespace is dropped at Submit",
        "request.py",
        "        submit.namespace,\n",
        "        Namespace(),\n",
        "REQ-1",
    ),
    Mutant(
        "requests that arrive together are told apart",
        "machine.py",
        "arrival = max(youngest, 0) if action.with_last else youngest + 1",
        "arrival = youngest + 1",
        "REQ-1",
    ),
    Mutant(
        "lost drafts come back",
        "moves.py",
        "ahead = evolve(request, computed=end, drafts=(), prefilling=not entry.yields)",
        "left = () if entry.yields else request.drafts\n"
        "    left = left or request.drafts[len(used) :]\n"
        "    ahead = evolve(request, computed=end, drafts=left, prefilling=not entry.yields)",
        "REQ-1",
    ),
    Mutant(
        "rejected drafts do not lower C",
        "machine.py",
        "computed = request.computed - rejected - cut",
        "computed = min(request.computed - cut, request.length)",
        "REQ-1",
    ),
    Mutant(
        "the worker is told that nothing was taken",
        "moves.py",
        "        new_blocks=len(taken),\n",
        "        new_blocks=0,\n",
        "PLAN-2",
    ),
    Mutant(
        "an abort of who waits changes nothing",
        "machine.py",
        "    request = state.find(action.id)\n    if request is None:\n",
        "    request = next((r for r in state.running if r.id == action.id), None)\n"
        "    if request is None:\n",
        "END-1",
    ),
    Mutant(
        "an abort leaves its step in flight",
        "plan.py",
        "plans[i] = evolve(plan, entries=tuple(gone if e is mine else e for e in plan.entries))",
        "pass",
        "PLAN-2",
    ),
    Mutant(
        "somebody is admitted after a preemption",
        "policy.py",
        "return policy.after_preemption is AfterPreemption.ADMIT_NOBODY and preempted > 0",
        "return False",
        "ADM-1",
        "spec_tight",
    ),
    Mutant(
        "the watermark is forgotten",
        "scheduler.py",
        "return p.config.watermark_blocks if p.state.running else 0",
        "return 0",
        "ADM-1",
    ),
    Mutant(
        "an admission looks at its first step only",
        "policy.py",
        "return looked_at[policy.admission]",
        "return 0",
        "ADM-1",
    ),
    Mutant(
        "the watermark is kept while nobody runs",
        "scheduler.py",
        "return p.config.watermark_blocks if p.state.running else 0",
        "return p.config.watermark_blocks",
        "WRK-1",
    ),
    Mutant(
        "an admission wants one block too many",
        "scheduler.py",
        "return max(first, more) + promised + watermark(p)",
        "return max(first, more) + promised + watermark(p) + 1",
        "WRK-1",
    ),
    Mutant(
        "a refused head ends admissions that would go on",
        "scheduler.py",
        "return Skip(offer) if choose.passes_over(p.policy) else Close(offer)",
        "return Close(offer)",
        "WRK-1",
    ),
    Mutant(
        "somebody gives way where nobody does",
        "policy.py",
        "    if policy.victim is Victim.NONE:\n        return None\n",
        "",
        "PRE-1",
    ),
    Mutant(
        "somebody gives way while blocks suffice",
        "scheduler.py",
        "if need <= len(p.state.pool.free):",
        "if need < len(p.state.pool.free):",
        "PRE-1",
    ),
    Mutant(
        "the last of the list gives way itself while blocks suffice",
        "scheduler.py",
        "if need <= len(p.state.pool.free):",
        "if need < len(p.state.pool.free) + (p.cursor < len(p.state.running) - 1):",
        "PRE-1",
        "VLLM_0_33",
    ),
    Mutant(
        "a reset preempts unasked",
        "policy.py",
        "return asked and policy.reset is Reset.PREEMPT_FIRST",
        "return policy.reset is Reset.PREEMPT_FIRST",
        "RST-1",
    ),
    Mutant(
        "a reset preempts the first first",
        "machine.py",
        "for index in reversed(range(len(state.running))):\n"
        "            events.append(Preempted(state.running[index].id))\n"
        "            cleared = sent_back(cleared, machine.policy, index)",
        "for index in range(len(state.running)):\n"
        "            events.append(Preempted(state.running[index].id))\n"
        "            cleared = sent_back(cleared, machine.policy, 0)",
        "RST-1",
    ),
    Mutant(
        "what can never fit is queued all the same",
        "policy.py",
        "return policy.impossible is Impossible.REFUSE",
        "return False",
        "RST-1",
    ),
    Mutant(
        "a hit looks at what a block holds",
        "pool.py",
        "if copies is None:\n            break",
        "if copies is None or not pool.blocks[copies[0]].content:\n            break",
        "GHO-1",
    ),
    Mutant(
        "another copy answers than policy names",
        "policy.py",
        "return copies[0 if policy.lookup is Lookup.OLDEST else -1]",
        "return copies[0]",
        "CON-2",
    ),
)
"""One of each kind that a property is there to see."""


def copied(tmp_path: Path, mutant: Mutant | None = None) -> Path:
    """A copy of the specification, with a fault or without."""
    spec = tmp_path / "spec"
    shutil.copytree(ROOT / "spec", spec, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        mutant.plant(spec)
    return spec


def notice(spec: Path, *arguments: str) -> dict[str, str | None]:
    """What notices a specification."""
    path = os.pathsep.join(map(str, (spec, ROOT / "impl", ROOT)))
    told = subprocess.run(
        [sys.executable, "-m", "tests.notice", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, str | None] = json.loads(told)
    return found


@pytest.mark.parametrize("mutant", REAL, ids=lambda mutant: mutant.name)
def test_a_broken_specification_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    assert notice(copied(tmp_path, mutant))["recording"] is not None


@pytest.mark.parametrize("mutant", REAL + OTHERS, ids=lambda mutant: mutant.name)
def test_one_property_alone_sees_it(mutant: Mutant, tmp_path: Path) -> None:
    found = notice(copied(tmp_path, mutant), mutant.seen_by, mutant.on)
    assert found["property"] == mutant.seen_by


def test_every_property_of_the_second_reading_has_a_fault_of_its_own() -> None:
    seen = {mutant.seen_by for mutant in REAL + OTHERS}
    assert seen >= {
        "ADM-1",
        "IDX-4",
        "OWN-4",
        "PLAN-2",
        "PUB-1",
        "QUE-1",
        "REQ-1",
        "RST-1",
        "TOK-1",
    }


def test_the_specification_itself_is_not(tmp_path: Path) -> None:
    assert notice(copied(tmp_path)) == {"recording": None, "property": None}
