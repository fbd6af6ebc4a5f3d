"""Stories about the stories: ten faults of the zoo, each with a trace, a picture and a property."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from attrs import evolve

from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.subject import parted
from servecheck.trace.model import Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.write import record
from servecheck.view.beside import Side, beside, nowhere, wrong
from servecheck.view.boxes import WRONG
from servecheck.view.marks import Rect, Shape, Strokes, Text, moved
from servecheck.view.svg import svg
from servecheck.zoo.document import RESULTS, rows_of
from servecheck.zoo.entry import Entry, Parts
from servecheck.zoo.programs import PROGRAMS, main
from servecheck.zoo.stories import LISTENER, StoryError, Told, believed, read_stories, told
from servecheck.zoo.storybook import drawn, found_by, pages
from servecheck.zoo.told import subject_of
from servespec.actions import ResetCache, Submit
from servespec.events import Event

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "traces" / "stories"
CLEAN = Entry("clean", "Nothing.", "", "", "", "", "", Parts())
STORIES = {story.entry.id: story for story in read_stories()}


@cache
def run(name: str) -> Told:
    """A story, and what came of its trace."""
    return told(STORIES[name], TRACES)


# --- what is told --------------------------------------------------------------------------------


def test_ten_stories_span_the_field() -> None:
    """Then no two are of one class of fault, and they come from most subjects of the zoo."""
    entries = [story.entry for story in STORIES.values()]
    assert len(entries) == 10
    assert len({entry.root_cause for entry in entries}) == 10
    assert {entry.subject for entry in entries} == {
        "pool",
        "sharing",
        "leaving",
        "namespaces",
        "preemption",
        "speculation",
        "events",
    }
    assert len({story.property_id for story in STORIES.values()}) == 10


@pytest.mark.parametrize("name", STORIES)
def test_only_the_engine_with_the_fault_parts_and_on_the_last_action(name: str) -> None:
    """Given the trace of a story; when it is replayed, then it holds for the specification and for
    the engine without a fault, and the engine with it parts on the last action."""
    trace = read_trace(TRACES / f"{name}.jsonl")
    report = replay_trace(trace)
    assert report.agrees
    assert report.reproduced
    assert parted(subject_of(CLEAN), trace.machine, trace.actions) is None
    found = parted(subject_of(STORIES[name].entry), trace.machine, trace.actions)
    assert found is not None
    assert len(found.actions) == len(trace.actions) <= 7


@pytest.mark.parametrize("name", STORIES)
def test_its_property_falls_on_the_engine_alone(name: str) -> None:
    """Given the engine with the fault and nobody beside it; then the property that the story names
    falls, on the last action or before."""
    story = run(name)
    assert 1 <= story.sees.number <= len(story.trace.actions)
    assert story.sees.what


def test_where_properties_fall_and_how() -> None:
    """Then they say it with the numbers of the trace."""
    fell = {name: (run(name).sees.number, run(name).sees.what) for name in STORIES}
    assert fell["hit-stays-free"] == (5, "blocks [1] of bob are in the free queue")
    assert fell["held-before-refused"] == (3, "block: (count, tables) = {1: (2, 1), 2: (2, 1)}")
    assert fell["joined-up"][0] == 4, "on arrival, before anything is found"
    assert fell["drafts-in-the-next-block"] == (5, "blocks [3] are neither free nor in a table")
    assert fell["released-under-a-step"] == (3, "the queue is (2, 3, 1), not (3,)")


def test_a_step_without_form_is_told_as_one() -> None:
    """Given a plan for somebody who holds nothing; then all properties fall, and the page says
    why; in no other story does that happen."""
    formless = {name for name in STORIES if run(name).problem is not None}
    assert formless == {"victim-stays-scheduled"}
    page = pages(ROOT)[ROOT / "docs" / "stories.md"]
    assert page.count("has no form") == 1


@pytest.mark.parametrize("name", STORIES)
def test_a_trace_is_its_program(name: str, tmp_path: Path) -> None:
    """When the programs are recorded anew, then the traces that are kept come out."""
    assert main([str(tmp_path)]) == 0
    kept, again = (read_trace(folder / f"{name}.jsonl") for folder in (TRACES, tmp_path))
    assert (kept.machine, kept.lines, kept.verdict) == (again.machine, again.lines, again.verdict)


def test_nothing_is_left_over() -> None:
    """Then programs, traces and pictures are those of the stories, in name."""
    assert set(PROGRAMS) == set(STORIES)
    assert {file.stem for file in TRACES.glob("*")} == set(STORIES)
    assert {file.stem for file in (ROOT / "docs" / "stories").glob("*")} == set(STORIES)


# --- page and pictures ---------------------------------------------------------------------------


def test_page_and_pictures_are_true_whatever_the_order_of_sets() -> None:
    """When they are made in another process, with texts hashed otherwise, then they are byte for
    byte those that are kept."""
    asked = [sys.executable, "-m", "servecheck.document", "--check"]
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(".svg is true") == len(STORIES)


@pytest.mark.parametrize("name", STORIES)
def test_a_picture_rings_what_is_wrong_and_all_of_it_has_room(name: str) -> None:
    drawing = drawn(run(name))
    rings = [m for m in drawing.marks if isinstance(m, Rect) and m.stroke == WRONG]
    assert len(rings) >= 3, "a frame, a sample in the legend, and something that is wrong"
    for mark in drawing.marks:
        if isinstance(mark, Text):
            assert mark.left >= 0
            assert mark.left + mark.width <= drawing.width
            assert mark.y <= drawing.height
    ElementTree.fromstring(svg(drawing))
    assert drawing.width <= 900, "it is read on a page"


@pytest.mark.parametrize("name", STORIES)
def test_labels_do_not_lie_on_each_other(name: str) -> None:
    """Then no two texts on one line overlap."""
    texts = [m for m in drawn(run(name)).marks if isinstance(m, Text)]
    for at, one in enumerate(texts):
        for other in texts[at + 1 :]:
            if abs(one.y - other.y) < min(one.size, other.size) * 0.7:
                apart = one.left + one.width <= other.left or other.left + other.width <= one.left
                assert apart, f"{one.text!r} and {other.text!r}"


def test_what_is_ringed() -> None:
    """Then it is the block that is free and read, the request that is planned and waits, the block
    that two hold; and what is lost is told."""
    found = {name: wrong(run(name).said.scene, run(name).held.scene) for name in STORIES}
    assert found["hit-stays-free"] == (frozenset({1}), frozenset())
    assert found["victim-stays-scheduled"] == (frozenset(), frozenset({"request alice"}))
    assert found["drafts-in-the-next-block"][0] >= {2, 3}
    assert found["held-before-refused"] == (frozenset({1, 2}), frozenset())
    lost = run("drafts-in-the-next-block")
    assert (nowhere(lost.said.scene), nowhere(lost.held.scene)) == ((), (3,))
    said = [m.text for m in drawn(lost).marks if isinstance(m, Text)]
    assert "neither free nor in a table: 3" in said


def test_two_sides_that_are_equal_have_nothing_ringed() -> None:
    side = run("hit-stays-free").said
    assert wrong(side.scene, side.scene) == (frozenset(), frozenset())
    marks = beside("t", "d", side, Side("other", "", side.scene)).marks
    assert sum(isinstance(m, Rect) and m.stroke == WRONG for m in marks) == 1, "the frame alone"


def test_a_queue_in_another_order_is_ringed_where_it_differs() -> None:
    scene = run("reset-keeps-names").said.scene
    other = evolve(scene, free=(scene.free[0], *reversed(scene.free[1:])))
    assert wrong(scene, other) == (frozenset(scene.free[1:]), frozenset())


def test_marks_are_moved() -> None:
    assert moved(Text(1, 2, "a", 9), 3, 4) == Text(4, 6, "a", 9)
    assert moved(Rect(1, 2, 9, 9), 3, 4) == Rect(4, 6, 9, 9)
    assert moved(Strokes((((1, 2), (3, 4)),)), 3, 4) == Strokes((((4, 6), (6, 8)),))
    assert moved(Shape(((1, 2),)), 3, 4) == Shape(((4, 6),))


def test_who_finds_it_is_read_off_the_kill_matrix() -> None:
    """Given the row of an entry; then the page says who found it after how much, and if nobody
    did, why."""
    row = rows_of(RESULTS)["hit-stays-free"]
    assert row.spec is not None
    assert f"after {row.spec.steps:,} steps; walks" in found_by((row,), 5)
    assert found_by((row,), 3).endswith("The shortest program known has 3 actions.")
    shorter = evolve(row, seed=1, depth=2)
    assert found_by((row, shorter), 3).endswith("The shortest program known has 2 actions.")
    nobody = evolve(row, spec=None, properties=None, golden=None, why="too rare")
    assert found_by((nobody,), 5).startswith("None of the checks: too rare. ")


# --- who listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORIES)
def test_who_hears_all_events_of_the_specification_knows_what_can_be_found(name: str) -> None:
    program, events = PROGRAMS[name], list[Event]()
    state = program.machine.initial()
    for action in program.actions:
        moved = program.machine.apply(state, action)
        state, events = moved.state, [*events, *moved.events]
        pool = believed(state, events).pool
        assert pool.index == state.pool.index
        assert [b.key for b in pool.blocks] == [b.key for b in state.pool.blocks]


def test_who_hears_of_an_eviction_forgets_the_block() -> None:
    """Given a pool of one block whose content was evicted by another text, and then a reset; then
    who listens knows it both times."""
    machine = PROGRAMS["hit-stays-free"].machine
    machine = evolve(machine, config=evolve(machine.config, num_blocks=3))
    first = PROGRAMS["hit-stays-free"].actions[:3]
    other = (Submit("alice", (7, 8, 9), max_tokens=1), *first[1:])
    state, events = machine.initial(), list[Event]()
    for action in (*first, *other, ResetCache()):
        moved = machine.apply(state, action)
        state, events = moved.state, [*events, *moved.events]
        assert believed(state, events).pool.index == state.pool.index
    assert {type(event).__name__ for event in events} >= {"BlockRemoved", "CacheCleared"}


def test_a_listener_stands_where_the_engine_is_right() -> None:
    """Given an engine whose state is right to the last field; then the picture has what a listener
    believes, and in all others the engine's own state."""
    heard = {name for name in STORIES if run(name).held.caption == LISTENER}
    assert heard == {"told-without-namespace"}
    held = run("told-without-namespace").held.scene
    assert held.blocks[3].found == 1, "bob's block is taken for a copy of alice's"


# --- bad input -----------------------------------------------------------------------------------

GOOD = {
    "id": "hit-stays-free",
    "title": "t",
    "seen": "[x](https://github.com/InternLM/lmdeploy/issues/4700)",
    "property": "LRU-2",
    "why": "w",
}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({}, ""),
        ({"id": "nobody"}, "'nobody' is unknown; take an entry of the zoo"),
        ({"property": "LRU-0"}, "'LRU-0' is unknown; take a property"),
        ({"seen": "They saw it."}, "there is no link; say where users told of it"),
        ({"seen": "[x](https://x.org)"}, "https://x.org is no report of hit-stays-free"),
        ({"title": ""}, "expected a text"),
    ],
)
def test_a_register_that_is_not_whole_is_refused(
    changed: dict[str, str], what: str, tmp_path: Path
) -> None:
    file = tmp_path / "stories.toml"
    lines = [f'{name} = "{text}"' for name, text in (GOOD | changed).items()]
    file.write_text("\n".join(["[[story]]", *lines]), encoding="utf-8")
    if not what:
        assert [story.title for story in read_stories(file)] == ["t"]
        return
    with pytest.raises(RegisterError) as caught:
        read_stories(file)
    assert what in str(caught.value)


def test_a_trace_that_does_not_show_the_fault_is_refused(tmp_path: Path) -> None:
    """Given traces that end too early, go on too long, or show another property; then that is
    said."""
    story, program = STORIES["hit-stays-free"], PROGRAMS["hit-stays-free"]
    file = tmp_path / "hit-stays-free.jsonl"
    record(file, program.machine, program.actions[:-1], Verdict("holds"))
    with pytest.raises(StoryError, match="hit-stays-free parts nowhere"):
        told(story, tmp_path)
    longer = (*program.actions, PROGRAMS["released-under-a-step"].actions[-1])
    record(file, program.machine, longer, Verdict("holds"))
    with pytest.raises(StoryError, match="parts at action 5, not at its last action"):
        told(story, tmp_path)
    with pytest.raises(StoryError, match="RST-1 does not fall"):
        told(evolve(story, property_id="RST-1"), TRACES)
