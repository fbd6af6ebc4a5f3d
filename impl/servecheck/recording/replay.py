"""Run the specification, or an engine, along a recording, and compare all that the recording shows.

Theory of operation. A recording says what was asked of the scheduler (workload), and what the
model answered (`sampled`, `drafts`). Both are input: they become actions of the machine. All the
rest is output, and must agree: what a pass scheduled, in which order, with which blocks; the
queues; preemptions; hits; free blocks; what finished and why; the events on the wire with their
hashes; and where there are states, the whole state twice a step. Nothing of the recorded output
is ever fed back into the machine, so the first difference ends the run. An engine that runs in the
place of the specification is held against the recording alone.

One step line is carried out in the engine's order: what arrives before the pass, the pass, what
happens during it, its outcome, a reset in an idle moment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import Factory, define, evolve, frozen

from servecheck.engines.whole import MakeWhole, SpecWhole, Whole
from servecheck.recording import model
from servecheck.recording.forms import Lines, cached_entry, fields_like, new_entry, state_form
from servecheck.recording.read import RecordingError
from servecheck.recording.settings import config_of, policy_of
from servecheck.recording.wire import named, on_the_wire
from servespec.actions import Submit
from servespec.chain import Namespace
from servespec.errors import SpecError
from servespec.events import (
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
)
from servespec.machine import (
    Abort,
    Action,
    Complete,
    Machine,
    Output,
    ResetCache,
    Schedule,
    Transition,
)
from servespec.plan import State

Observer = Callable[[State, Action, Transition], None]
"""Is told of every transition: the state before, the action, the outcome."""


@frozen
class Difference:
    """One field in which what runs does not do what was recorded."""

    step: int
    place: str
    field: str
    recorded: object
    specified: object


@frozen
class Report:
    """How far a recording and the specification agree."""

    name: str
    steps: int
    """Step lines of the recording."""
    agreed: int
    """Step lines in which nothing differs, from the first on."""
    fields: int
    """Comparisons made."""
    messages: int
    states: int
    differences: tuple[Difference, ...]
    """Those of the first step that differs; empty if all agree."""


def replay(
    recording: model.Recording, observe: Observer | None = None, make: MakeWhole = SpecWhole
) -> Report:
    """Run the specification, or what `make` makes, along a recording, up to its end or the first
    difference.

    Raises:
        RecordingError: the recording is of asynchronous scheduling, which needs two steps in
            flight, or its outcomes are not outcomes of its passes.
        ConfigError: its settings contradict each other.
    """
    if recording.config.async_scheduling:
        raise RecordingError(
            file=Path("config.json"),
            line=None,
            field=f"{recording.name}.async_scheduling",
            what="is true, and this machine keeps one step in flight",
            what_to_do="replay a synchronous run",
        )
    machine = Machine(config_of(recording.config), policy_of(recording.config))
    run = _Run(recording, make(machine), observe)
    for line in recording.steps:
        try:
            run.turn(line)
        except SpecError as error:
            # A pass that differs has other outcomes than the recorded one: that is no news.
            # After one that agrees, the recording gives its machine something impossible.
            if not run.differences:
                raise RecordingError(
                    file=Path(f"{recording.name}.steps.jsonl"),
                    line=run.agreed + 1,
                    field=None,
                    what=f"step {line.step} cannot be carried out ({error})",
                    what_to_do="record the run again",
                ) from None
        if run.differences:
            break
        run.agreed += 1
    else:
        run.end()
    return Report(
        recording.name,
        len(recording.steps),
        run.agreed,
        run.fields,
        run.messages,
        run.states,
        tuple(run.differences),
    )


@define
class _Run:
    """What runs, and how far it has come in each text of the recording."""

    recording: model.Recording
    serving: Whole
    observe: Observer | None
    arrivals: int = 0
    """Workload lines carried out."""
    messages: int = 0
    states: int = 0
    agreed: int = 0
    fields: int = 0
    differences: list[Difference] = Factory(list)
    wire: list[model.Event] = Factory(list)
    """Cache events that no message has carried yet."""
    arrived_at: dict[str, int] = Factory(dict)
    finished: list[str] = Factory(list)
    """Since the last pass."""
    sent_back: list[str] = Factory(list)
    """By resets since the last pass."""
    preemptions: dict[str, int] = Factory(dict)
    """How often each live request was preempted."""

    @property
    def state(self) -> State:
        return self.serving.state

    # --- one turn of the engine loop ---

    def turn(self, line: model.StepLine) -> None:
        arrived: list[str] = []
        aborts: list[tuple[str, str, tuple[str, ...]]] = []
        resets: list[tuple[str, bool, tuple[str, ...]]] = []
        mine = self._due(line.step)
        for item in mine:
            match item:
                case model.Arrival():
                    self._submit(item)
                    arrived.append(item.id)
                case model.ResetLine():
                    resets.append(self._reset(item.kind))
                case model.AbortLine(when="before"):
                    aborts += [self._abort(i, item.when) for i in item.ids]
        self._compare(
            line, "arrivals", (("arrived", line.arrived),), (("arrived", tuple(arrived)),)
        )
        if line.pass_ is not None:
            self._pass(line, line.pass_)
        for item in mine:
            if isinstance(item, model.AbortLine) and item.when == "during":
                aborts += [self._abort(i, item.when) for i in item.ids]
        if line.outcome is not None:
            self._outcome(line, line.outcome)
        if line.reset:
            self._reset("idle")
        self._compare(
            line,
            "calls",
            (
                ("aborts", tuple((a.id, a.when, a.done) for a in line.aborts)),
                ("resets", tuple((r.kind, r.ok, r.preempted) for r in line.resets)),
            ),
            (("aborts", tuple(aborts)), ("resets", tuple(resets))),
        )

    def end(self) -> None:
        """What is left over when the last step has agreed."""
        rest = (
            ("workload", len(self.recording.workload) - self.arrivals),
            ("events", len(self.recording.messages) - self.messages),
            ("state", len(self.recording.states or ()) - self.states),
        )
        last = self.recording.steps[-1].step if self.recording.steps else 0
        for name, left in rest:
            self.fields += 1
            if left:
                self.differences.append(
                    Difference(last, "after the last step", f"lines of {name}", left, 0)
                )

    def _due(self, step: int) -> tuple[model.WorkloadLine, ...]:
        first = self.arrivals
        for item in self.recording.workload[first:]:
            at = item.arrival_step if isinstance(item, model.Arrival) else item.step
            if at > step:
                break
            self.arrivals += 1
        return self.recording.workload[first : self.arrivals]

    # --- actions ---

    def _apply(self, action: Action) -> tuple[Event, ...]:
        before = None if self.observe is None else self.state
        events = self.serving.apply(action)
        if self.observe is not None and before is not None:
            self.observe(before, action, Transition(self.state, events))
        self.wire += on_the_wire(events)
        for event in events:
            match event:
                case Preempted(id):
                    self.preemptions[id] = self.preemptions.get(id, 0) + 1
                case Finished(id):
                    self.finished.append(id)
                    self.preemptions.pop(id, None)
                    self.arrived_at.pop(id)
        return events

    def _submit(self, line: model.Arrival) -> None:
        youngest = max(self.arrived_at.values(), default=-1)
        self._apply(
            Submit(
                line.id,
                line.prompt,
                line.max_tokens,
                Namespace(salt=line.cache_salt),
                line.priority,
                line.stop_token_ids,
                with_last=youngest == line.arrival_step,
            )
        )
        self.arrived_at[line.id] = line.arrival_step

    def _abort(self, request_id: str, when: str) -> tuple[str, str, tuple[str, ...]]:
        events = self._apply(Abort(request_id))
        return request_id, when, tuple(e.id for e in events if isinstance(e, Finished))

    def _reset(self, kind: str) -> tuple[str, bool, tuple[str, ...]]:
        events = self._apply(ResetCache(preempt_running=kind == "running"))
        preempted = tuple(e.id for e in events if isinstance(e, Preempted))
        self.sent_back += preempted
        return kind, not any(isinstance(e, Refused) for e in events), preempted

    # --- comparisons ---

    def _pass(self, line: model.StepLine, recorded: model.PassLine) -> None:
        resumed = frozenset(self.preemptions)
        events = self._apply(Schedule())
        plan = self.state.in_flight[-1].entries
        order = tuple(e.id for e in events if isinstance(e, Preempted))
        new = [e for e in plan if e.admitted]
        specified: Lines = (
            ("scheduled", tuple((e.id, len(e.tokens)) for e in plan)),
            ("total", sum(len(e.tokens) for e in plan)),
            ("scheduled_spec", tuple((e.id, e.drafts) for e in plan if e.drafts)),
            ("new", tuple(new_entry(e) for e in sorted(new, key=lambda e: e.id in resumed))),
            ("cached", tuple(cached_entry(e) for e in plan if not e.admitted)),
            ("preempted", tuple(sorted({*order, *self.sent_back}))),
            ("preempt_order", None if recorded.preempt_order is None else order),
            ("finished_before", tuple(sorted(self.finished))),
            ("running", tuple(r.id for r in self.state.running)),
            ("waiting", tuple(r.id for r in self.state.waiting)),
            ("free_blocks", len(self.state.pool.free)),
        )
        seen = evolve(recorded, finished_before=tuple(sorted(recorded.finished_before)))
        self._compare(line, "pass", fields_like(seen, specified), specified)
        self.finished.clear()
        self.sent_back.clear()
        self._state(line, "scheduled")

    def _outcome(self, line: model.StepLine, recorded: model.OutcomeLine) -> None:
        sampled, drafts = dict(recorded.sampled), dict(recorded.drafts)
        events = self._apply(
            Complete(
                tuple(
                    Output(i, sampled.get(i, ()), drafts.get(i, ()))
                    for i in dict.fromkeys((*sampled, *drafts))
                )
            )
        )
        kept = {e.id: e.tokens for e in events if isinstance(e, Delivered)}
        ended = {e.id: e.reason.value for e in events if isinstance(e, Finished)}
        running = self.state.running
        specified: Lines = (
            ("finished", tuple(sorted(ended))),
            ("free_blocks_after", len(self.state.pool.free)),
            ("appended", None if recorded.appended is None else tuple(kept.items())),
            ("finish_reason", tuple(sorted(ended.items())) if recorded.finish_reason else ()),
            (
                "computed_after",
                None if recorded.computed_after is None else {r.id: r.computed for r in running},
            ),
            ("tables", None if recorded.tables is None else {r.id: r.table for r in running}),
        )
        # Ids are keys here; only in `scheduled` does their order mean something.
        computed, tables = recorded.computed_after, recorded.tables
        seen: Lines = (
            *fields_like(recorded, specified[:-2]),
            ("computed_after", None if computed is None else dict(computed)),
            ("tables", None if tables is None else dict(tables)),
        )
        self._compare(line, "outcome", seen, specified)
        self._message(line)
        self._state(line, "updated")

    def _message(self, line: model.StepLine) -> None:
        """All events since the last message go out with a processed step, if there are any."""
        if not self.wire:
            return
        sent = self.recording.messages[self.messages : self.messages + 1]
        events = sent[0].events if sent else ()
        whole = any(
            isinstance(name, str)
            for e in events
            if not isinstance(e, model.AllBlocksCleared)
            for name in e.block_hashes
        )
        recorded = tuple(named(e, whole) for e in events)
        specified = tuple(named(e, whole) for e in self.wire)
        for i in range(max(len(recorded), len(specified))):
            self._compare(
                line,
                f"message {self.messages}",
                ((f"event {i}", recorded[i] if i < len(recorded) else None),),
                ((f"event {i}", specified[i] if i < len(specified) else None),),
            )
        self.messages += 1
        self.wire.clear()

    def _state(self, line: model.StepLine, at: str) -> None:
        if self.recording.states is None:
            return
        shown = self.recording.states[self.states : self.states + 1]
        if not shown:
            self.differences.append(Difference(line.step, f"state {at}", "line", "none", "one"))
            return
        recorded = shown[0]
        specified = state_form(self.state, line.step, at, self.preemptions)
        seen: Lines = tuple(
            ("cached", frozenset((c.hash, c.blocks) for c in recorded.cached))
            if name == "cached"
            else (name, dict(recorded.reqs))
            if name == "reqs"
            else (name, value)
            for name, value in fields_like(recorded, specified)
        )
        self._compare(line, f"state {at}", seen, specified)
        self.states += 1

    def _compare(self, line: model.StepLine, place: str, recorded: Lines, specified: Lines) -> None:
        for (name, seen), (_, said) in zip(recorded, specified, strict=True):
            self.fields += 1
            if seen != said:
                self.differences.append(Difference(line.step, place, name, seen, said))
