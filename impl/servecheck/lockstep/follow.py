"""An engine follows the specification, action by action, up to the first divergence.

Theory of operation. The specification goes first: `Machine.apply` gives the next state and what
happened. The follower then has the engine do the same, and compares what it shows. At L2 and L3
the engine is given the action itself. At L1 it is given the verbs of the pool that the transition
consists of, read off its events: hits are matched and acquired, blocks are taken, published,
released, and each answer must be the specification's.

An engine that raises, where the specification goes on, diverges by that; what it showed before it
raised counts first.

Where a divergence is known (`lockstep.deviations`), an engine of L3 is asked for its state, and the
specification goes on from that (`adopt`). Where that cannot be, the engine is let go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol, assert_never

from attrs import define, evolve, field, frozen

from servecheck.engines.protocol import (
    AnyEngine,
    Capabilities,
    Engine,
    EngineError,
    Level,
    PoolEngine,
    StateEngine,
    StepEngine,
    Unsupported,
    Verb,
)
from servecheck.lockstep.adopt import NotAdoptable, Shown, adopted
from servecheck.lockstep.compare import (
    Comparison,
    Difference,
    said_outcome,
    said_plan,
    said_pool,
    said_state,
)
from servespec import policy as choose
from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.events import (
    Admitted,
    BlockStored,
    CacheCleared,
    Finished,
    Preempted,
    Refused,
    Scheduled,
)
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step
from servespec.properties.books import Moment
from servespec.properties.fold import Fold

ANSWER = "answer"
"""The field of a difference that says that the engine raised."""
ADDRESS = re.compile("0x[0-9a-fA-F]+")
"""Where something lies in memory is another place in the next run."""


@frozen
class Divergence:
    """The first action after which an engine is not what the specification says."""

    engine: str
    version: str
    level: Level
    number: int
    """Of the action, from 0."""
    action: Action
    differences: tuple[Difference, ...]


class Diverged(AssertionError):
    """An engine and the specification part; `divergence` says where."""

    def __init__(self, divergence: Divergence) -> None:
        first = divergence.differences[0]
        super().__init__(
            f"{divergence.engine} {divergence.version} diverges at action {divergence.number}: "
            f"{first.field}: expected {first.expected}, observed {first.observed}"
        )
        self.divergence = divergence


class Follower(Protocol):
    """Something that goes along with the specification."""

    def follow(self, step: Step) -> State | None:
        """Go along with one step. The state to go on from, where that is the engine's own.

        Raises:
            Diverged: it cannot.
        """
        ...

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        """The engine is able to do this action; else it must not be asked."""
        ...


Following = Callable[[Machine], Follower]
"""Starts what goes along with a machine, at its initial state."""


@define
class EngineFollower:
    """An engine beside the specification.

    Raises:
        EngineError: the engine lacks methods of the level that it says it has.
    """

    engine: AnyEngine
    comparison: Comparison
    done: int = 0
    """Actions that agreed."""
    level: Level | None = None
    """Compare at this level, at most the one that the engine says it has."""
    _level: Level = field(init=False)
    _compared: Callable[[Step], Iterator[Difference]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        engine, said = self.engine, self.engine.capabilities
        self._level = said.level if self.level is None else self.level
        if self._level > said.level:
            raise EngineError(
                f"{said.name} has level {said.level.name}, and {self._level.name} was asked for"
            )
        if self._level is Level.STATE and isinstance(engine, StateEngine):
            self._compared = lambda step: _state_step(engine, step, self.comparison)
        elif self._level is Level.STEPS and isinstance(engine, StepEngine):
            self._compared = lambda step: _loop_step(engine, step, self.comparison)
        elif self._level is Level.POOL and isinstance(engine, PoolEngine):
            self._compared = lambda step: _pool_step(engine, step, self.comparison)
        else:
            says = "cannot be compared at" if self.level is not None else "says that it has"
            raise EngineError(
                f"{said.name} {says} level {self._level.name}, and lacks methods of it; "
                "see servecheck.engines.protocol"
            )

    @property
    def capabilities(self) -> Capabilities:
        """What the engine is; its level is the one that is compared."""
        return evolve(self.engine.capabilities, level=self._level)

    def follow(self, step: Step) -> None:
        found: list[Difference] = []
        try:
            found.extend(self._compared(step))
        except (Exception, SystemExit) as error:  # an engine may not end the checker either
            what = ADDRESS.sub("0x…", f"{type(error).__name__}: {error}")
            found.append(Difference(ANSWER, "no error", what))
            raise Diverged(self._divergence(step, tuple(found))) from error
        if found:
            raise Diverged(self._divergence(step, tuple(found)))
        self.comparison.names.settle()
        self.done += 1

    def adopt(self, step: Step) -> State:
        """After a divergence that is known: the state that the engine is in. It goes along from
        there.

        Raises:
            NotAdoptable: it does not show one, or it is none of the machine's.
        """
        engine, names = self.engine, self.comparison.names
        if self._level is not Level.STATE or not isinstance(engine, StateEngine):
            raise NotAdoptable(f"at level {self._level.name.lower()} it does not show its state")
        names.unsettle()
        try:
            state = adopted(step, Shown(self.comparison.last_plan, engine.see_state()), names)
        except NotAdoptable:
            raise
        except Exception as error:
            what = ADDRESS.sub("0x…", f"{type(error).__name__}: {error}")
            raise NotAdoptable(f"its state cannot be read: {what}") from error
        names.settle()
        self.done += 1
        return state

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return allowed(self.engine, state, action)

    def _divergence(self, step: Step, found: tuple[Difference, ...]) -> Divergence:
        said = self.engine.capabilities
        return Divergence(said.name, said.version, self._level, self.done, step.action, found)


def follower(engine: AnyEngine, machine: Machine, level: Level | None = None) -> EngineFollower:
    """An engine of any level beside this machine.

    Raises:
        EngineError: the engine is not what it says it is, or cannot speculate where this machine
            does.
    """
    said, gamma = engine.capabilities, machine.config.num_speculative_tokens
    if gamma and not said.can(Verb.DRAFTS):
        raise Unsupported(f"num_speculative_tokens = {gamma}: {said.name} does not speculate")
    return EngineFollower(engine, Comparison.of(machine.policy), level=level)


def allowed(engine: Engine, state: State, action: Action) -> bool:
    """What an engine says that it can do covers this action."""
    can = engine.capabilities.can
    match action:
        case Submit():
            return (
                (can(Verb.SALTS) or action.namespace.salt is None)
                and (can(Verb.ADAPTERS) or action.namespace.adapter is None)
                and (can(Verb.STOP_TOKENS) or not action.stop)
            )
        case Abort(id):
            busy = any(plan.entry(id) is not None for plan in state.in_flight)
            return can(Verb.ABORT) and (can(Verb.ABORT_IN_FLIGHT) or not busy)
        case Discard():
            return can(Verb.DISCARD)
        case ResetCache(preempt_running):
            return can(Verb.RESET_PREEMPTING if preempt_running else Verb.RESET)
        case Schedule() | Complete():
            return True
        case _:
            assert_never(action)


# --- L2, L3: the engine is given the action -----------------------------------------------------


def _state_step(engine: StateEngine, step: Step, compare: Comparison) -> Iterator[Difference]:
    yield from _loop_step(engine, step, compare)
    yield from compare.state(said_state(step.after), engine.see_state())


def _loop_step(engine: StepEngine, step: Step, compare: Comparison) -> Iterator[Difference]:
    refused = any(isinstance(e, Refused) for e in step.events)
    match step.action:
        case Submit():
            yield from compare.answer("accepted", not refused, engine.submit(step.action))
        case Schedule():
            said = said_plan(step.after.in_flight[-1], step.events)
            yield from compare.plan(said, engine.schedule())
        case Complete(outputs):
            plan = step.before.in_flight[0]
            live = [o for o in outputs if plan.entry(o.id) is not None]
            yield from compare.outcome(said_outcome(step.events), engine.complete(live))
        case Discard():
            engine.discard()
        case Abort(id):
            known = step.before.find(id) is not None
            yield from compare.answer("aborted", known, engine.abort(id))
        case ResetCache(preempt_running):
            yield from compare.answer("reset", not refused, engine.reset_cache(preempt_running))
        case _:
            assert_never(step.action)


# --- L1: the engine is given the pool's verbs --------------------------------------------------


def _pool_step(engine: PoolEngine, step: Step, compare: Comparison) -> Iterator[Difference]:
    fold = Fold.of(step)
    for m in fold.moments():
        yield from _pool_verb(engine, step, compare, fold, m)
    match step.action:
        case Complete():
            for table in step.before.in_flight[0].deferred:
                engine.release(table)
        case Discard():
            plan = step.before.in_flight[-1]
            for entry in plan.entries:
                back = choose.returned_blocks(step.machine.policy, entry.new_blocks)
                if back and not entry.cancelled:
                    engine.release(entry.table[-back:])
            for table in plan.deferred:
                engine.release(table)
    yield from compare.pool(said_pool(step.after.pool), engine.see_pool())


def _pool_verb(
    engine: PoolEngine, step: Step, compare: Comparison, fold: Fold, m: Moment
) -> Iterator[Difference]:
    size, policy = step.machine.config.block_size, step.machine.policy
    match m.event:
        case Admitted(id, _, table):
            request = step.before.find(id)
            if request is None:
                return
            text = request.text(0, request.length)
            limit = min(choose.hit_limit(policy, request.length, size), len(request.keys))
            hits = table[: m.hits]
            found = engine.match(request.namespace, text, limit)
            yield from compare.answer(f"hits of {id}", True, found == hits)
            engine.acquire(hits)
        case Scheduled(id, _, _, new):
            if new:
                taken = engine.extend(len(new))
                if taken != new:
                    yield Difference(f"blocks of {id}", new, taken)
        case BlockStored(block, key, _):
            text = tuple(t for run in key.runs() for t in run)
            at = len(text) // size - 1
            engine.publish((0,) * at + (block,), key.namespace, text, at, at + 1)
        case Preempted(id) | Finished(id):
            if not fold.defers(id):
                engine.release(fold.tables[id])
        case CacheCleared():
            yield from compare.answer("cleared", True, engine.clear())
