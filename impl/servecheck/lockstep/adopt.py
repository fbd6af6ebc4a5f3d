"""The state that an engine is in after a known deviation, as a state of the specification.

Theory of operation. An engine of level L3 shows its blocks, its queues and its plan, and that is
most of a `State`. The rest is filled in from the step after which it deviates:

    shown      free queue, reference counts, index; of a request: id, C, T, table, drafts
    from step  prompt, limits, namespace, priority, arrival; output, as the step brought it
    follows    keys from the text, published blocks from the keys, prefilling and plans from both
    content    what the step wrote, in the blocks that it did not take anew

Content is a ghost: no engine has it, so it is carried along. A name of a key that the engine shows
for the first time is taken for the key that stands at that place of a request. The result must be
a state that keeps every property of states; anything that is not shown, or contradicts itself, is
`NotAdoptable`: what the engine would have done from there is undetermined.

Where an engine does not deviate, what is adopted is the machine's own state, to the last field.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TypeVar

from attrs import define, evolve, field, frozen

from servecheck.engines.protocol import SeenEntry, SeenPlan, SeenRequest, SeenState
from servecheck.lockstep.compare import Names
from servespec.actions import Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Chain, Tokens
from servespec.machine import written
from servespec.plan import Plan, Planned, State, let_go
from servespec.policy import HitCap
from servespec.pool import Block, Blocks, Index, Pool
from servespec.properties import PROPERTIES, Fall, Kind, Step
from servespec.request import Request, arrived, with_output

T = TypeVar("T")


class NotAdoptable(Exception):
    """What an engine shows is not a state from which the specification can go on."""


@frozen
class Shown:
    """What an engine has shown at one step."""

    plan: SeenPlan | None
    """The plan that it has made, if the step was to make one."""
    state: SeenState


def adopted(step: Step, shown: Shown, names: Names) -> State:
    """The state that the engine is in.

    Raises:
        NotAdoptable: it does not show it, or no state of the machine is like that.
    """
    state = _Adoption(step, shown, names).state()
    for asked in PROPERTIES.values():
        if asked.kind is not Kind.S or asked.expected(step.machine.config, step.machine.policy):
            continue
        there = Step(step.machine, step.before, step.action, state, ())
        _, outcome = asked.start(step.machine, state).after(there)
        if isinstance(outcome, Fall):
            raise NotAdoptable(f"what it holds is no legal state: {asked.id}: {outcome.what}")
    return state


def told(value: T | None, what: str) -> T:
    """A value that the engine shows."""
    if value is None:
        raise NotAdoptable(f"it does not show {what}")
    return value


@define
class _Adoption:
    step: Step
    shown: Shown
    names: Names
    seen: dict[str, SeenRequest] = field(init=False)
    """Live requests, those that run first."""
    runs: tuple[str, ...] = field(init=False)
    waits: tuple[str, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        running = told(self.shown.state.running, "who runs")
        waiting = told(self.shown.state.waiting, "who waits")
        self.runs, self.waits = tuple(r.id for r in running), tuple(r.id for r in waiting)
        self.seen = {r.id: r for r in running + waiting}
        if len(self.seen) < len(running) + len(waiting):
            raise NotAdoptable("it shows a request twice")
        if len(running) > self.step.machine.config.max_num_seqs:
            raise NotAdoptable(f"{len(running)} requests run, more than max_num_seqs")

    def state(self) -> State:
        requests = {id: self.request(r) for id, r in self.seen.items()}
        keys = self.keys(requests)
        requests = {id: self.with_published(r, keys) for id, r in requests.items()}
        plan = self.new_plan(requests)
        in_flight = self.earlier_plans() + (() if plan is None else (plan,))
        prefilling = {id: self.prefilling(r, plan) for id, r in requests.items()}
        ranks = {a: i for i, a in enumerate(sorted({r.arrival for r in requests.values()}))}
        whole = {
            id: evolve(r, prefilling=prefilling[id], arrival=ranks[r.arrival])
            for id, r in requests.items()
        }
        return State(
            self.pool(keys, plan),
            tuple(whole[id] for id in self.waits),
            tuple(whole[id] for id in self.runs),
            in_flight,
        )

    # --- requests ----------------------------------------------------------------------------

    def request(self, seen: SeenRequest) -> Request:
        """A request with the text that it has, and what is shown of it."""
        machine, before = self.step.machine, self._known(seen.id)
        length = told(seen.length, f"the length of {seen.id}")
        extra = self._output(seen.id)[: max(length - before.length, 0)]
        if before.length + len(extra) != length:
            raise NotAdoptable(f"{seen.id} has {length} tokens, and nobody brought those")
        grown = with_output(before, extra, machine.config, machine.policy) if extra else before
        computed = told(seen.computed, f"what is computed of {seen.id}")
        drafts = told(seen.drafts, f"the drafts of {seen.id}")
        if not 0 <= computed <= length + machine.config.num_speculative_tokens:
            raise NotAdoptable(f"{seen.id} has computed {computed} of {length} tokens")
        table = told(seen.table, f"the table of {seen.id}")
        return evolve(grown, computed=computed, table=tuple(table), drafts=tuple(drafts))

    def _known(self, request_id: str) -> Request:
        step = self.step
        if (before := step.before.find(request_id)) is not None:
            return before
        if not isinstance(step.action, Submit) or step.action.id != request_id:
            raise NotAdoptable(f"it holds {request_id}, who is not here")
        if (after := step.after.find(request_id)) is not None:
            return after
        youngest = max((r.arrival for r in step.before.live), default=-1)
        return arrived(step.action, youngest + 1, step.machine.config, step.machine.policy)

    def _output(self, request_id: str) -> Tokens:
        """The tokens that the step has brought for a request."""
        if not isinstance(self.step.action, Complete):
            return ()
        entry = self.step.before.in_flight[0].entry(request_id)
        said = (o for o in self.step.action.outputs if o.id == request_id)
        return next(said, Output(request_id)).tokens if entry is not None else ()

    def with_published(self, r: Request, keys: dict[int, Chain]) -> Request:
        """Blocks of a table that have got their key are its first ones."""
        count = sum(b in keys for b in r.table)
        if tuple(keys.get(b) for b in r.table[:count]) != r.keys[:count]:
            raise NotAdoptable(f"the first {count} blocks of {r.id} do not carry its keys")
        return evolve(r, published=count)

    def prefilling(self, r: Request, plan: Plan | None) -> bool:
        """The last pass of a request, if any, was a chunk of its prompt."""
        before = self.step.before.find(r.id)
        if r.id in self.waits or before is None:
            return True
        if plan is not None and (entry := plan.entry(r.id)) is not None:
            return not entry.yields
        if isinstance(self.step.action, Discard):
            entry = self.step.before.in_flight[-1].entry(r.id)
            return before.prefilling if entry is None else entry.was_prefilling
        return before.prefilling

    # --- the index ---------------------------------------------------------------------------

    def keys(self, requests: dict[str, Request]) -> dict[int, Chain]:
        """What each block carries, oldest copy of each key first."""
        found: dict[int, Chain] = {}
        for copies in told(self.shown.state.pool.index, "its index"):
            known = self.names.keys.get(copies.key)
            # In lockstep the keys that names stand for are the specification's.
            key = known if isinstance(known, Chain) else self._witness(copies.blocks, requests)
            if not self.names.agree(copies.key, key) or not copies.blocks:
                raise NotAdoptable(
                    f"the name of the key on blocks {copies.blocks} is not one key's"
                )
            for block in copies.blocks:
                if block in found:
                    raise NotAdoptable(f"block {block} carries two keys")
                found[block] = key
        return found

    def _witness(self, blocks: Blocks, requests: dict[str, Request]) -> Chain:
        """The key that a new name stands for: that of the place of its block in a table."""
        found = {key for b in blocks for key in self._at_places(b, requests)}
        if len(found) != 1:
            raise NotAdoptable(f"the key on blocks {blocks} cannot be told")
        return found.pop()

    def _at_places(self, block: int, requests: dict[str, Request]) -> Iterator[Chain]:
        for r in requests.values():
            place = r.table.index(block) if block in r.table else len(r.keys)
            yield from r.keys[place : place + 1]
        if isinstance(self.step.action, Complete):
            # Who has ended published before its table was let go, and no block is taken meanwhile.
            key = self.step.after.pool.blocks[block].key
            yield from () if key is None else (key,)

    # --- plans -------------------------------------------------------------------------------

    def new_plan(self, requests: dict[str, Request]) -> Plan | None:
        if not isinstance(self.step.action, Schedule):
            return None
        plan = told(self.shown.plan, "its plan")
        return Plan(tuple(self._entry(e, requests) for e in plan.entries))

    def _entry(self, e: SeenEntry, requests: dict[str, Request]) -> Planned:
        r, table = requests.get(e.id), tuple(told(e.table, f"the table of {e.id} in its plan"))
        if r is None or e.id not in self.runs:
            raise NotAdoptable(f"it plans for {e.id}, who does not run")
        drafts = told(e.drafts, f"the drafts of {e.id} in its plan")
        end = e.start + e.tokens - len(drafts)
        tokens = r.text(e.start, end) + tuple(drafts)
        if len(tokens) != e.tokens:
            raise NotAdoptable(f"{e.id} has no {e.tokens} tokens from {e.start} on")
        before = next((b for b in self.step.before.running if b.id == e.id), None)
        stays = before is not None and e.id not in self._preempted()
        first = len(before.table) if stays and before is not None else self._hits(r, table, e.start)
        if stays and before is not None and table[:first] != before.table:
            raise NotAdoptable(f"the plan of {e.id} does not go on from its table")
        return Planned(
            e.id,
            r.namespace,
            e.start,
            tokens,
            tuple(drafts),
            table,
            len(table) - first,
            yields=e.start + e.tokens >= r.length,
            admitted=not stays,
            was_prefilling=before.prefilling if stays and before is not None else True,
        )

    def _hits(self, r: Request, table: Blocks, start: int) -> int:
        """How many blocks of an admitted table were found: those before its first token, and one
        more where all of the text was found and the last token is recomputed in place (rule 11)."""
        size, whole = (
            self.step.machine.config.block_size,
            start // self.step.machine.config.block_size,
        )
        if start % size:
            return whole + 1
        last = self.step.machine.policy.hit_cap is HitCap.NONE and start + 1 == r.length
        if not last or size > 1 or len(table) <= whole or len(r.keys) <= whole:
            return whole
        earlier = takewhile(lambda e: e.id != r.id, told(self.shown.plan, "its plan").entries)
        found = self.step.before.pool.blocks[table[whole]].key is r.keys[whole]
        return whole + (found or any(table[whole] in (e.table or ()) for e in earlier))

    def _preempted(self) -> tuple[str, ...]:
        plan = self.shown.plan
        if not isinstance(self.step.action, Schedule) or plan is None:
            return ()
        return tuple(told(plan.preempted, "who was preempted"))

    def earlier_plans(self) -> tuple[Plan, ...]:
        """The plans that were in flight before, without those who have left or been sent back."""
        before, plans = self.step.before, self.step.before.in_flight
        order = list(before.running)
        match self.step.action:
            case Complete():
                places = {e.id: at for at, e in enumerate(plans[0].entries)}
                order.sort(key=lambda r: places.get(r.id, len(places)))
                plans = plans[1:]
            case Discard():
                plans = plans[:-1]
            case ResetCache():
                order.reverse()
            case Schedule():
                places = {id: at for at, id in enumerate(self._preempted())}
                order.sort(key=lambda r: places.get(r.id, len(places)))
        pool, sent_back = before.pool, self._preempted()
        for r in order:
            if r.id not in self.runs or r.id in sent_back:
                pool, plans = let_go(pool, self.step.machine.policy, plans, r)
        return plans

    # --- the pool ----------------------------------------------------------------------------

    def pool(self, keys: dict[int, Chain], plan: Plan | None) -> Pool:
        machine, seen = self.step.machine, self.shown.state.pool
        first, count = machine.policy.first_block, machine.config.num_blocks
        counts, free = told(seen.ref_counts, "its ref counts"), told(seen.free, "its free queue")
        if len(counts) != count or any(not first <= b < count for b in (*free, *keys)):
            raise NotAdoptable(f"it shows blocks that are none of {first} to {count - 1}")
        content = self._content(plan)
        blocks = [self.step.before.pool.blocks[b] for b in range(first)]
        for b in range(first, count):
            kept = content[b] if counts[b] > 0 or b in keys else ()
            blocks.append(Block(counts[b], keys.get(b), kept))
        index: dict[Chain, Blocks] = {}
        for b, key in keys.items():
            index[key] = (*index.get(key, ()), b)
        return Pool(tuple(blocks), tuple(free), Index(index))

    def _content(self, plan: Plan | None) -> list[tuple[Chain | None, ...]]:
        pool = self.step.before.pool
        if isinstance(self.step.action, Complete):
            pool = written(self.step.machine, pool, self.step.before.in_flight[0])
        content = [block.content for block in pool.blocks]
        for entry in plan.entries if plan is not None else ():
            for b in entry.table[len(entry.table) - entry.new_blocks :]:
                content[b] = ()
        return content
