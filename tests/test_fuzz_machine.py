"""Stories about fuzzing: the specification holds under it, and what is broken is found."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.tell import PropertyFell
from servespec import pool as blocks
from servespec.policy import Policy
from servespec.pool import Moved, Pool

def small(**changes):
    return settings(
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False, max_examples=200, stateful_step_count=30)

def head_first(pool, policy, table):
    return right_release(pool, policy, table[::-1])
right_release = blocks.release
right_acquire = blocks.acquire
right_extend = blocks.extend
def leaves_in_queue(pool, hits):
    moved = right_acquire(pool, hits)
    return Moved(Pool(moved.pool.blocks, pool.free, moved.pool.index), moved.blocks)
def forgets(pool, count):
    moved = right_extend(pool, count)
    return Moved(Pool(moved.pool.blocks, moved.pool.free, pool.index), moved.blocks, moved.events)
def silent(pool,count):
    moved = right_extend(pool, count)
    return Moved(moved.pool, moved.blocks)

import time
@pytest.mark.parametrize(("name","f"),[("release",head_first),("acquire",leaves_in_queue),("extend",forgets),("extend",silent)])
def test_x(name,f,monkeypatch):
    monkeypatch.setattr(blocks,name,f)
    t=Tally()
    t0=time.time()
    with pytest.raises(PropertyFell) as c:
        run_state_machine_as_test(seed(1)(machine_class(tally=t)), settings=small())
    print(time.time()-t0, t.runs)
    print(c.value)
    from servecheck.fuzz.shrink import shrunk
    print(shrunk(c.value))
    print(getattr(c.value,"__notes__",None))
