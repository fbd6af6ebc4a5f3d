"""Ten faults of the zoo as stories: each with its trace, run along it.

Theory of operation. `stories.toml` holds what nobody can compute: what users saw, and why a
property sees it. All else comes from running the entry along its trace, twice: beside the
specification, up to where they part; and alone, with every property asked. The picture shows both
states at that moment. Where the engine's state is right and what it tells is not, it shows in the
place of that state what somebody believes who listens. `storybook` makes the page of it.

    stories.toml, traces/stories/ ──▶ told ──▶ Told ──▶ storybook.pages
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import evolve, frozen

from servecheck.engines.fast.abstraction import abstraction
from servecheck.lockstep.register import Table, tables
from servecheck.lockstep.subject import Parted, parted
from servecheck.trace.model import Trace
from servecheck.trace.read import read_trace
from servecheck.view.beside import Side
from servecheck.view.moment import Moment
from servecheck.view.scene import Scene, scene_of
from servecheck.zoo import ENTRIES, Entry
from servecheck.zoo.asked import Alone, painted
from servecheck.zoo.reports import read_reports, reports_of
from servecheck.zoo.told import subject_of
from servespec.actions import Submit
from servespec.events import BlockRemoved, BlockStored, CacheCleared, Event
from servespec.plan import State
from servespec.pool import Index, Pool
from servespec.properties import PROPERTIES, Step

STORIES = Path(__file__).with_name("stories.toml")
SPECIFIED, ENGINE, LISTENER = "The specification", "The engine", "What a listener believes"


class StoryError(Exception):
    """A story whose trace does not show what it tells."""


@frozen
class Story:
    """What stands in the register."""

    entry: Entry
    title: str
    seen: str
    """What users saw."""
    property_id: str
    why: str
    """What makes this property see the fault."""


@frozen
class Fell:
    """A property that fell on what the engine did, and at which action first, from 1."""

    number: int
    what: str


@frozen
class Told:
    """A story, and what came of its trace."""

    story: Story
    trace: Trace
    parted: Parted
    fallen: dict[str, Fell]
    """By property."""
    problem: str | None
    """Why the last step is none of which a property could be asked."""
    said: Side
    held: Side

    @property
    def sees(self) -> Fell:
        """How the property of the story falls."""
        return self.fallen[self.story.property_id]


# --- the register --------------------------------------------------------------------------------


def read_stories(file: Path = STORIES) -> tuple[Story, ...]:
    """All stories, in the order of the page.

    Raises:
        RegisterError: the file cannot be read, or names what there is not, or links to what its
            entry does not stand for.
    """
    reports, found = read_reports(), []
    for table in tables(file, "story", ("id", "title", "seen", "property", "why")):
        name, property_id = table.text("id"), table.text("property")
        if name not in ENTRIES:
            raise table.wrong("id", f"{name!r} is unknown", "take an entry of the zoo")
        if property_id not in PROPERTIES:
            raise table.wrong("property", f"{property_id!r} is unknown", "take a property")
        entry, seen = ENTRIES[name], _prose(table, "seen")
        urls = {url for report in reports_of(entry, reports) for url in report.urls}
        links = re.findall(r"\]\((\S+?)\)", seen)
        if not links:
            raise table.wrong("seen", "there is no link", "say where users told of it")
        for link in links:
            if link not in urls:
                raise table.wrong("seen", f"{link} is no report of {name}", "add it there, or mend")
        found.append(Story(entry, table.text("title"), seen, property_id, _prose(table, "why")))
    return tuple(found)


def _prose(table: Table, name: str) -> str:
    """A text on one line."""
    return " ".join(table.text(name).split())


# --- a story is run ------------------------------------------------------------------------------


def told(story: Story, folder: Path) -> Told:
    """Run an entry along its trace in a folder.

    Raises:
        TraceError: there is no such trace.
        StoryError: the entry does not part on the last action of the trace, or the property of the
            story does not fall.
    """
    trace = read_trace(folder / f"{story.entry.id}.jsonl")
    found = parted(subject_of(story.entry), trace.machine, trace.actions)
    if found is None or len(found.actions) != len(trace.actions):
        where = "nowhere" if found is None else f"at action {len(found.actions)}"
        raise StoryError(f"{trace.path}: {story.entry.id} parts {where}, not at its last action")
    steps, fallen = _alone(story.entry, trace)
    if story.property_id not in fallen:
        raise StoryError(f"{trace.path}: {story.property_id} does not fall")
    last = steps[-1]
    state, whose, note = last.after, ENGINE, in_flight(last.after)
    if found.divergence.differences[0].field.startswith("event"):
        whose, note = LISTENER, "from the events that it was told"
        state = believed(last.after, (event for step in steps for event in step.events))
    said = Side(SPECIFIED, in_flight(found.step.after), _scene(trace, found.step))
    held = Side(whose, note, _scene(trace, evolve(last, after=state)))
    return Told(story, trace, found, fallen, last.problem, said, held)


def _alone(entry: Entry, trace: Trace) -> tuple[Sequence[Step], dict[str, Fell]]:
    """What an entry does by itself, and all that falls on the way."""
    alone = Alone.of(entry, trace.machine)
    steps: list[Step] = []
    fallen: dict[str, Fell] = {}
    for number, action in enumerate(trace.actions, 1):
        before, events = alone.state, alone.engine.apply(action)
        alone.state = painted(trace.machine, before, action, abstraction(alone.engine))
        steps.append(Step(trace.machine, before, action, alone.state, events))
        for fall in alone.watch.see_step(steps[-1]):
            if not fall.known:
                fallen.setdefault(fall.property.id, Fell(number, fall.what))
    return steps, fallen


def _scene(trace: Trace, step: Step) -> Scene:
    submits = (action.id for action in trace.actions if isinstance(action, Submit))
    came = {request: number for number, request in enumerate(submits)}
    moment = Moment(step.machine, step.after, step.before, (step.action,), step.events, came)
    return scene_of(moment)


def in_flight(state: State) -> str:
    """The plans in flight in words: who gets how many tokens."""
    parts = [
        f"{entry.id} +{len(entry.tokens)}{' (has left)' if entry.cancelled else ''}"
        for plan in state.in_flight
        for entry in plan.entries
    ]
    return f"in flight: {', '.join(parts) or 'nothing'}"


def believed(state: State, events: Iterable[Event]) -> State:
    """A state with the keys that somebody counts on who was only told of the events."""
    pool = state.pool
    blocks, index = [evolve(block, key=None) for block in pool.blocks], Index()
    for event in events:
        match event:
            case BlockStored(block, key, _):
                blocks[block] = evolve(blocks[block], key=key)
                index = index.with_copies(key, (*index.copies.get(key, ()), block))
            case BlockRemoved(block, key):
                blocks[block] = evolve(blocks[block], key=None)
                if key in index.copies:
                    left = tuple(b for b in index.copies[key] if b != block)
                    index = index.with_copies(key, left)
            case CacheCleared():
                blocks, index = [evolve(block, key=None) for block in blocks], Index()
    return evolve(state, pool=Pool(tuple(blocks), pool.free, index))
