"""Stories about pictures and graphs of a state: who holds what, exactly; that no two boxes or texts
ever overlap; that whatever an id holds, a file is what its ending says.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from xml.etree import ElementTree

import networkx as nx
import pytest
from attrs import evolve

import servecheck.cli
from servecheck.fuzz.wander import Wanderer
from servecheck.recording import read_recording
from servecheck.trace.model import Trace
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.write import record
from servecheck.view import example, png, write
from servecheck.view.errors import ViewError
from servecheck.view.graph import Graph, graph_at, graph_of, recording_graph_at, state_graph
from servecheck.view.layout import layout
from servecheck.view.marks import Drawing, Rect, Text
from servecheck.view.moment import Moment, moment_of_recording, moment_of_trace
from servecheck.view.rows import families_of
from servecheck.view.scene import Change, Scene, scene_of
from servecheck.view.svg import svg
from servecheck.view.words import columns, cut, listed, namespace_name, plain, wrapped
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC, Namespace
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, FreeWalk, Policy, Release
from tests.recordings import OWN

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "traces/golden/sharing.jsonl"

HOSTILE = (
    "<b>&\"'</b>]]>",
    "a\nb\0\x1b[31m\u202e\ud800",
    "x" * 500,
    "日本語" * 30,
    "$\\frac{1}{2}$ %s {0}",
    " ",
    "\\n",
    "\n",
    "",
)


def machine(
    blocks: int = 8, policy: Policy = VLLM_0_33, size: int = 2, *, tokens: int = 64
) -> Machine:
    config = Config(
        num_blocks=blocks,
        block_size=size,
        max_model_len=64,
        max_num_batched_tokens=tokens,
        max_num_seqs=8,
    )
    return Machine(config, policy)


def moments(on: Machine, actions: Iterable[Action]) -> Iterator[Moment]:
    """The moment after each action."""
    state = on.initial()
    came: dict[str, int] = {}
    for action in actions:
        if isinstance(action, Submit):
            came[action.id] = len(came)
        moved = on.apply(state, action)
        yield Moment(on, moved.state, state, (action,), moved.events, dict(came))
        state = moved.state


def after(on: Machine, *actions: Action) -> Scene:
    """What there is to see after the last of the actions."""
    *_, last = moments(on, actions)
    return scene_of(last)


def says(**tokens: int) -> Complete:
    """The step in flight has run: each of these sampled one token."""
    return Complete(tuple(Output(name, (token,)) for name, token in tokens.items()))


def edges(graph: Graph, kind: str) -> list[tuple[str, str]]:
    return sorted((u, v) for u, v, its in graph.edges(data=True) if its["kind"] == kind)


def changed(scene: Scene) -> dict[str, list[int]]:
    return {
        change.value: those
        for change in Change
        if (those := [b.number for b in scene.blocks.values() if change in b.changes])
    }


# --- stories -----------------------------------------------------------------------------------

TWO = (Submit("a", (1, 2, 3, 4, 5), 1), Submit("b", (1, 2, 3, 4, 6), 4), Schedule())


def test_two_requests_share_a_trunk() -> None:
    scene = after(machine(), *TWO)
    graph = graph_of(scene)
    assert isinstance(graph, nx.DiGraph)
    holds = [(u, v, its.get("position")) for u, v, its in graph.edges(data=True)]
    assert sorted(edge for edge in holds if edge[2] is not None) == [
        ("request a", "block 1", 0),
        ("request a", "block 2", 1),
        ("request a", "block 3", 2),
        ("request b", "block 1", 0),
        ("request b", "block 2", 1),
        ("request b", "block 4", 2),
    ]
    assert edges(graph, "parent") == [("block 2", "block 1")]
    assert edges(graph, "next free") == [("block 5", "block 6"), ("block 6", "block 7")]
    assert dict(graph.nodes["request b"]) == {
        "kind": "request",
        "id": "b",
        "status": "running",
        "place": 1,
        "computed": 5,
        "length": 5,
        "in_flight": 1,
        "namespace": "public",
    }
    trunk, tail, free = (graph.nodes[f"block {n}"] for n in (2, 4, 5))
    assert (trunk["ref_count"], trunk["hashed"], trunk["depth"], trunk["copies"]) == (2, True, 2, 1)
    assert (tail["ref_count"], tail["hashed"], tail["in_flight"]) == (1, False, True)
    assert (free["held"], free["queue"], "key" in free) == (False, 0, False)
    assert changed(scene) == {"taken": [1, 2, 3, 4], "stored": [1, 2]}
    assert [[row.path for row in family] for family in families_of(scene)] == [
        [(1, 2, 3), (1, 2, 4)]
    ]


def test_a_tail_that_nobody_holds_is_cached_behind_the_trunk() -> None:
    scene = after(machine(), *TWO, says(a=7, b=7))
    assert changed(scene) == {"released": [3]}
    assert scene.free == (3, 5, 6, 7), "without a key it is used first"
    more = (Submit("c", (1, 2, 3, 4, 8, 9, 1), 1), Schedule(), says(b=7, c=1))
    scene = after(machine(), *TWO, says(a=7, b=7), *more)
    graph = graph_of(scene)
    assert scene.doing == "complete; c ended"
    assert edges(graph, "parent") == [
        ("block 2", "block 1"),
        ("block 3", "block 2"),
        ("block 4", "block 2"),
    ]
    assert graph.nodes["block 3"]["hashed"]
    assert not graph.nodes["block 3"]["held"]
    ((held, idle),) = families_of(scene)
    assert (held.path, idle.path, idle.holder) == ((1, 2, 4), (1, 2, 3), None)


def test_the_order_of_the_free_queue_and_a_block_right_before_its_parent() -> None:
    scene = after(machine(), Submit("a", (1, 2, 3, 4, 5), 1), Schedule(), says(a=1))
    graph = graph_of(scene)
    assert scene.free == (3, 4, 5, 6, 7, 2, 1)
    assert edges(graph, "next free") == sorted(
        (f"block {a}", f"block {b}") for a, b in pairwise(scene.free)
    )
    assert set(graph["block 2"]["block 1"]) == {"parent", "next free"}
    assert [graph.nodes[f"block {b}"]["queue"] for b in scene.free] == list(range(7))


def test_a_copy_is_marked_and_the_parent_is_what_a_look_up_finds() -> None:
    graph = graph_at(read_trace(GOLDEN), 6)
    assert graph.nodes["block 4"]["copies"] == graph.nodes["block 6"]["copies"] == 2
    assert [n for n, its in graph.nodes(data=True) if its.get("duplicate")] == ["block 6"]
    assert ("block 6", "block 2") in edges(graph, "parent")
    assert graph.nodes["block 4"]["key"] == graph.nodes["block 6"]["key"]


def test_found_evicted_and_forgotten() -> None:
    on = machine(5)
    past = (Submit("a", (1, 2, 3, 4, 5), 1), Schedule(), says(a=9))
    scene = after(on, *past, Submit("b", (1, 2, 7, 7, 7, 7, 7), 1), Schedule())
    assert changed(scene) == {"taken": [2, 3, 4], "evicted": [2], "found": [1], "stored": [3, 4]}
    scene = after(on, *past, ResetCache())
    assert changed(scene) == {"evicted": [1, 2]}
    assert scene.doing == "reset the cache"


def test_whose_parent_is_gone_is_cut_off() -> None:
    on = machine(4, evolve(VLLM_0_33, free_walk=FreeWalk.HEAD_FIRST))
    past = (Submit("a", (1, 2, 3, 4, 5), 1), Schedule(), says(a=9))
    scene = after(on, *past, Submit("b", (7, 7, 7), 1), Schedule())
    assert scene.free == (2,)
    assert edges(graph_of(scene), "parent") == []
    held, idle = families_of(scene)
    assert (held[0].path, idle[0].path, idle[0].start) == ((3, 1), (2,), 1)
    drawing = layout(scene)
    assert "cached, cut off" in [text.text for text in texts(drawing)]
    sound(scene, drawing)


def test_a_block_behind_two_copies_is_drawn_twice() -> None:
    scene = after(
        machine(12),
        Submit("r1", (1, 2), 8),
        Submit("r3", (1, 2), 8),
        Schedule(),
        says(r1=9, r3=3),
        Schedule(),
        says(r1=9, r3=4),
        Schedule(),
        says(r1=9, r3=5),
        Submit("r2", (1, 2, 3, 4, 5), 8),
        Schedule(),
    )
    tables = {h.name: h.table[:2] for h in scene.holders}
    assert tables == {"r1": (1, 3), "r3": (2, 4), "r2": (1, 4)}
    drawing = layout(scene)
    assert "(4)" in [text.text for text in texts(drawing)]
    sound(scene, drawing)


def test_who_waits_holds_nothing() -> None:
    on = machine(4)
    scene = after(on, Submit("a", (1,) * 6, 2), Submit("b", (2,) * 6, 2), Schedule())
    graph = graph_of(scene)
    assert graph.nodes["request b"]["status"] == "waiting"
    assert graph.out_degree("request b") == 0
    assert scene.free == ()
    sound(scene, layout(scene))


def test_a_table_that_a_step_still_writes_belongs_to_one_who_left() -> None:
    on = machine(8, evolve(VLLM_0_33, release=Release.DEFERRED))
    scene = after(on, *TWO, Abort("b"))
    graph = graph_of(scene)
    assert graph.nodes["left 0"] == {"kind": "left", "status": "left", "place": 0}
    assert sorted(graph["left 0"]) == ["block 1", "block 2", "block 4"]
    assert "request b" not in graph
    assert scene.doing == "abort b"
    sound(scene, layout(scene))


def test_a_state_by_itself_has_no_changes() -> None:
    on = machine()
    *_, last = moments(on, TWO)
    graph = state_graph(last.state, on.config, on.policy)
    assert {its.get("changes") for _, its in graph.nodes(data=True)} == {None, ""}
    named = graph_of(scene_of(last))
    assert set(named) == set(graph)
    assert set(named.edges) == set(graph.edges)
    assert "block 0" not in graph, "the null block is no block"


def test_the_same_content_in_two_namespaces() -> None:
    ours, theirs = Namespace(salt="x"), Namespace(adapter="x")
    scene = after(
        machine(),
        Submit("a", (1, 2, 3), 1, ours),
        Submit("b", (1, 2, 3), 1, theirs),
        Submit("c", (1, 2, 3), 1),
        Schedule(),
    )
    spaces = {b.namespace for b in scene.blocks.values()}
    assert spaces == {'salt "x"', 'adapter "x"', "public", ""}
    shown = [text.text for text in texts(layout(scene))]
    assert 'salt "x"' in shown
    assert 'adapter "x"' in shown
    assert "public" not in shown


def test_a_colour_is_kept_while_others_leave() -> None:
    def hues(*actions: Action) -> dict[str, int | None]:
        return {h.name: h.hue for h in after(machine(), *actions).holders}

    before = hues(*TWO)
    later = hues(*TWO, says(a=7, b=7), Submit("c", (1,), 1), Schedule())
    assert before["b"] == later["b"] == 1
    assert len(set(later.values())) == 2


# --- recordings --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "stride"), [("toy_reset", 6), ("spec_abort", 8)])
def test_a_step_of_a_recording_is_the_recorded_state(name: str, stride: int) -> None:
    recording = read_recording(OWN / name)
    assert recording.states is not None
    for line in recording.states[::stride]:
        moment = moment_of_recording(recording, line.step, line.at)
        assert moment.state.pool.free == line.free
        assert tuple(b.ref_count for b in moment.state.pool.blocks) == line.ref
        assert tuple(r.id for r in moment.state.running) == line.running
        assert tuple(r.id for r in moment.state.waiting) == line.waiting
        assert not moment.doubt


def test_a_step_that_a_recording_leaves_out() -> None:
    recording = read_recording(OWN / "dup")
    with pytest.raises(
        ViewError, match="no step 24; it has steps 0 to 101, and none between 19 and 40"
    ):
        moment_of_recording(recording, 24)
    with pytest.raises(ViewError, match=r"no step 102; it has steps 0 to 101$"):
        moment_of_recording(recording, 102)
    assert moment_of_recording(recording).place == "step 101 of 0 to 101, scheduled"
    assert recording_graph_at(recording, 0).nodes["request d1"]["status"] == "running"


def test_a_recording_that_differs_is_shown_up_to_there_and_not_behind() -> None:
    recording = read_recording(OWN / "dup")
    line = recording.steps[3]
    assert line.pass_ is not None
    wrong = evolve(line, pass_=evolve(line.pass_, total=line.pass_.total + 1))
    other = evolve(recording, steps=(*recording.steps[:3], wrong, *recording.steps[4:]))
    assert not moment_of_recording(other, recording.steps[2].step, "updated").doubt
    assert "says otherwise" in moment_of_recording(other, line.step).doubt
    assert "says otherwise" in moment_of_recording(other, line.step, "updated").doubt
    with pytest.raises(ViewError, match="not reached"):
        moment_of_recording(other, recording.steps[4].step)
    assert line.outcome is not None
    wrong = evolve(line, outcome=evolve(line.outcome, free_blocks_after=0))
    other = evolve(recording, steps=(*recording.steps[:3], wrong, *recording.steps[4:]))
    assert not moment_of_recording(other, line.step).doubt
    assert "says otherwise" in moment_of_recording(other, line.step, "updated").doubt


# --- traces ------------------------------------------------------------------------------------


def test_the_picture_in_the_documents_is_that_of_the_committed_trace() -> None:
    """`servecheck render traces/golden/sharing.jsonl --step 6 -o docs/sharing.svg`"""
    drawn = svg(layout(scene_of(moment_of_trace(read_trace(GOLDEN), 6))))
    assert drawn == (ROOT / "docs/sharing.svg").read_text(encoding="utf-8")


def test_the_committed_trace_is_the_example() -> None:
    trace = read_trace(GOLDEN)
    assert trace.actions == example.ACTIONS
    assert replay_trace(trace).agrees
    state = moment_of_trace(trace, 6).state
    assert [state.pool.blocks[b].ref_count for b in (1, 2)] == [3, 3]


def test_where_a_trace_says_otherwise_the_picture_says_so() -> None:
    trace = read_trace(GOLDEN)
    lines = [*trace.lines[:4], evolve(trace.lines[4], digest="0" * 16), *trace.lines[5:]]
    other = evolve(trace, lines=tuple(lines))
    assert moment_of_trace(other, 3).doubt == ""
    doubt = moment_of_trace(other, 4).doubt
    assert doubt in [text.text for text in texts(layout(scene_of(moment_of_trace(other, 4))))]


def test_a_trace_that_cannot_be_carried_out_is_shown_up_to_there() -> None:
    trace = read_trace(GOLDEN)
    lines = [*trace.lines[:4], evolve(trace.lines[4], action=says()), *trace.lines[5:]]
    other = evolve(trace, lines=tuple(lines))
    assert moment_of_trace(other, 3).state.find("ann")
    with pytest.raises(ViewError, match=r":6: action 4 cannot .* show a step before 4$"):
        moment_of_trace(other, 5)


# --- pictures ----------------------------------------------------------------------------------


def texts(drawing: Drawing) -> list[Text]:
    return [mark for mark in drawing.marks if isinstance(mark, Text)]


def boxes(drawing: Drawing) -> list[Rect]:
    """The boxes of blocks, in the tables."""
    return [mark for mark in drawing.marks if isinstance(mark, Rect) and mark.block is not None]


Place = tuple[float, float, float, float]


def place_of(mark: Rect | Text) -> Place:
    """Left, top, right, bottom."""
    if isinstance(mark, Rect):
        return mark.x, mark.y, mark.x + mark.width, mark.y + mark.height
    return mark.left, mark.y - 0.73 * mark.size, mark.left + mark.width, mark.y + 0.1 * mark.size


def apart(one: Place, other: Place) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def inside(one: Place, other: Place) -> bool:
    return other[0] <= one[0] and one[2] <= other[2] and other[1] <= one[1] and one[3] <= other[3]


def sound(scene: Scene, drawing: Drawing) -> None:
    """Nothing overlaps or sticks out, and every block is there."""
    page = (0.0, 0.0, drawing.width, drawing.height)
    rects, words = [place_of(b) for b in boxes(drawing)], [place_of(t) for t in texts(drawing)]
    tipped = [m for m in drawing.marks if isinstance(m, Rect) and m.tip]
    assert all(inside(place, page) for place in (*rects, *words))
    assert all(apart(a, b) for a, b in combinations([place_of(m) for m in tipped], 2))
    assert all(apart(a, b) for a, b in combinations(words, 2))
    for word in words:
        for rect in rects:
            assert apart(word, rect) or inside(word, rect)
    hashed = {b.number for b in scene.blocks.values() if b.hashed}
    held = {b.number for b in scene.blocks.values() if b.ref_count}
    assert {b.block for b in boxes(drawing)} == hashed | held
    ElementTree.fromstring(svg(drawing))


def many(policy: Policy = VLLM_0_33) -> Iterator[Action]:
    """Eight requests with more than 80 blocks, a trunk for each half of them, cached tails."""
    trunks = [tuple(range(k, k + 8)) for k in (0, 100)]
    for k in range(6):
        yield Submit(f"past-{k}", (*trunks[k % 2], *(k,) * (2 * k + 1)), 1)
    yield Schedule()
    yield Complete(tuple(Output(f"past-{k}", (9,)) for k in range(6)))
    for k in range(10):
        prompt = (*trunks[k % 2], *(20 + k for _ in range(2 * k + 10)))
        yield Submit(f"request-{k}", prompt, 4, Namespace(salt="t") if k == 5 else PUBLIC)
    yield Schedule()


def test_eighty_blocks_do_not_overlap() -> None:
    scene = after(machine(140, tokens=400), *many())
    held = [b for b in scene.blocks.values() if b.ref_count]
    assert len(held) >= 80
    assert sum(h.status == "running" for h in scene.holders) == 8
    assert any(not family[0].holder for family in families_of(scene)) or scene.free
    drawing = layout(scene)
    sound(scene, drawing)
    assert drawing.width <= 1040


def test_tables_wider_than_the_page_go_on_below() -> None:
    config = Config(
        num_blocks=300,
        block_size=1,
        max_model_len=200,
        max_num_batched_tokens=400,
        max_num_seqs=4,
    )
    on = Machine(config, VLLM_0_33)
    scene = after(
        on, Submit("a", tuple(range(99)), 2), Submit("b", tuple(range(40)), 2), Schedule()
    )
    drawing = layout(scene)
    sound(scene, drawing)
    assert drawing.width <= 1040
    assert sum(text.text == "a" for text in texts(drawing)) > 3
    ((a, b),) = families_of(scene)
    shared = sum(x == y for x, y in zip(a.boxes, b.boxes, strict=False))
    assert shared == 39, "the hit cap leaves out the last token"
    assert len(boxes(drawing)) == 99 + 1


def test_many_free_blocks_are_told_in_short() -> None:
    scene = after(machine(20_000), *TWO)
    drawing = layout(scene)
    sound(scene, drawing)
    shown = [text.text for text in texts(drawing)]
    assert f"… {19_995 - 8} more …" in shown
    assert shown.index("19999") > shown.index("5")


def test_pictures_of_random_states() -> None:
    """Every policy axis, preemptions, aborts, resets, drafts: whatever a walk meets."""
    seen = 0
    for seed in range(40):
        walk = Wanderer(seed, ()).go(30)
        for at, moment in enumerate(moments(walk.machine, walk.actions)):
            if at % 10 != 9:
                continue
            scene = scene_of(moment)
            sound(scene, layout(scene))
            graph = graph_of(scene)
            holds = edges(graph, "holds")
            for block in scene.blocks.values():
                assert block.ref_count == sum(to == block.node for _, to in holds)
            assert len(edges(graph, "next free")) == max(len(scene.free) - 1, 0)
            seen += 1
    assert seen > 80


def test_the_same_moment_is_the_same_picture() -> None:
    one, other = (svg(layout(after(machine(140, tokens=400), *many()))) for _ in range(2))
    assert one == other


def test_empty_states() -> None:
    on = machine()
    scene = scene_of(Moment(on, on.initial()))
    drawing = layout(scene)
    sound(scene, drawing)
    assert "nobody runs" in [text.text for text in texts(drawing)]


# --- hostile ids -------------------------------------------------------------------------------


def hostile() -> Scene:
    submits = [
        Submit(name, (1, 2, 3, k), 4, Namespace(name if k % 2 else None, name[::-1]))
        for k, name in enumerate(HOSTILE)
    ]
    return after(machine(40), *submits, Schedule())


def test_hostile_ids_stay_apart_and_on_their_line() -> None:
    scene = hostile()
    assert len({h.name for h in scene.holders}) == len(HOSTILE)
    assert all(h.name.isprintable() and h.name for h in scene.holders)
    drawing = layout(scene)
    sound(scene, drawing)
    text = svg(drawing)
    assert "<b>" not in text
    assert all(c.isprintable() or c == "\n" for c in text)
    shown = [t.text for t in texts(drawing)]
    assert "xxxxxxxxxxxxxxxxx…" in shown
    assert "日本語日本語日本…" in shown


def test_plain_words() -> None:
    assert plain("a\\b\n") == r"a\\b\n"
    assert plain(" ") == r"\x20"
    assert plain("") == r"\empty"
    assert plain("\ud800\u202e") == r"\ud800\u202e"
    assert plain("a b") == "a b"
    assert len({plain(text) for text in (*HOSTILE, *map(plain, HOSTILE))}) > len(HOSTILE)
    assert columns("a日") == 3
    assert cut("abcdef", 4) == "abc…"
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    assert listed(range(5), 3) == "0, 1, 2, … 2 more"
    assert wrapped("aa bb cc dd", 5, 2) == ["aa bb", "cc dd"]
    assert wrapped("aa bb cc dd ee", 5, 2) == ["aa bb", "cc d…"]


def test_no_two_namespaces_have_one_name() -> None:
    spaces = [
        PUBLIC,
        Namespace("public"),
        Namespace(""),
        Namespace(salt=""),
        Namespace('a", salt "b'),
        Namespace("a", "b"),
        Namespace("a", 'b"'),
        Namespace("a", 'b\\"'),
    ]
    assert len({namespace_name(space) for space in spaces}) == len(spaces)


# --- files -------------------------------------------------------------------------------------


def alike(graph: Graph, read: Graph) -> None:
    assert {n: read.nodes[n] for n in read} == {n: graph.nodes[n] for n in graph}

    def told(of: Graph) -> list[list[object]]:
        return sorted([u, v, sorted(its.items())] for u, v, its in of.edges(data=True))

    assert told(read) == told(graph)


@pytest.mark.parametrize("scene", [hostile(), after(machine(), *TWO, says(a=7, b=7))])
def test_graphml_reads_back(scene: Scene, tmp_path: Path) -> None:
    graph = graph_of(scene)
    file = tmp_path / "x.graphml"
    write.write(scene, file)
    read = nx.read_graphml(file, force_multigraph=True)
    assert isinstance(read, nx.MultiDiGraph)
    alike(graph, read)
    ids = [e.get("id") for e in ElementTree.parse(file).iter() if e.tag.endswith("}edge")]
    assert len(set(ids)) == len(ids) == graph.number_of_edges()


QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def read_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, str]]]:
    """Nodes with attributes, and edges with their kind; each is on a line of its own."""
    found: dict[str, dict[str, str]] = {}
    tied = []
    first, *lines, last = text.splitlines()
    assert first.startswith("digraph ")
    assert last == "}"
    for line in lines[2:]:
        bare = QUOTED.sub("Q", line)
        values = [unquoted(value) for value in QUOTED.findall(line)]
        assert re.fullmatch(r"  Q( -> Q)? \[\w+=\w+(, \w+=\w+)*\];", bare)
        names = re.findall(r"(\w+)=Q", bare)
        if " -> " in bare:
            tied.append((values[0], values[1], dict(zip(names, values[2:], strict=True))["kind"]))
        else:
            found[values[0]] = dict(zip(names, values[1:], strict=True))
    return found, tied


@pytest.mark.parametrize("scene", [hostile(), after(machine(), *TWO, says(a=7, b=7))])
def test_dot_reads_back(scene: Scene) -> None:
    graph = graph_of(scene)
    found, tied = read_dot(write.dot(graph))
    assert found == {
        node: {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in its.items()}
        for node, its in graph.nodes(data=True)
    }
    assert tied == [(u, v, its["kind"]) for u, v, its in graph.edges(data=True)]


def test_a_png_is_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scene = after(machine(), *TWO, Submit("日本 $x^2$", (1,), 1))
    write.write(scene, tmp_path / "x.PNG")
    content = (tmp_path / "x.PNG").read_bytes()
    drawing = layout(scene)
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert abs(width - 2 * drawing.width) < 2
    assert abs(height - 2 * drawing.height) < 2


def test_a_png_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> NoReturn:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(png, "import_module", absent)
    with pytest.raises(ViewError, match=r"a \.png needs matplotlib.*write an \.svg"):
        write.write(after(machine(), *TWO), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_a_png_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything(_: str) -> ModuleType:
        return importlib.import_module("math")

    monkeypatch.setattr(png, "import_module", anything)
    with pytest.raises(ViewError, match=r"1000 × 1000000, is too large .* write an \.svg"):
        png.png(Drawing(1000, 1_000_000, "", ()))


@pytest.mark.parametrize("name", ["x", "x.txt", "x.svg.gz", ".svg"])
def test_an_ending_that_is_not_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(ViewError, match=r"give one of \.svg, \.png, \.graphml, \.dot$"):
        write.write(after(machine(), *TWO), tmp_path / name)


@pytest.mark.parametrize("ending", [".svg", ".graphml", ".dot"])
def test_a_file_that_cannot_be_written(ending: str, tmp_path: Path) -> None:
    scene = after(machine(), *TWO)
    with pytest.raises(ViewError, match=r"cannot be written \(No such file or directory\)"):
        write.write(scene, tmp_path / "nowhere" / f"x{ending}")
    full = Path("/dev/full")
    if full.exists():
        link = tmp_path / f"x{ending}"
        link.symlink_to(full)
        with pytest.raises(ViewError, match=r"cannot be written \(No space left on device\)"):
            write.write(scene, link)


# --- the command -------------------------------------------------------------------------------

Render = Callable[..., tuple[int, str, str]]


@pytest.fixture
def render(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Render:
    monkeypatch.setattr(servecheck.cli, "COMMANDS", ("render", "replay"))
    monkeypatch.chdir(tmp_path)

    def called(*args: object) -> tuple[int, str, str]:
        code = servecheck.cli.main(["render", *map(str, args)])
        out, err = capsys.readouterr()
        return code, out, err

    return called


def test_render_a_trace(render: Render, tmp_path: Path) -> None:
    code, out, err = render(GOLDEN, "--step", 6)
    assert (code, err) == (0, "")
    assert out == (
        "sharing-6.svg: sharing, action 6 of 0 to 9; requests: 3, blocks: 12, edges: 19\n"
    )
    drawn = (tmp_path / "sharing-6.svg").read_bytes()
    assert drawn == (ROOT / "docs/sharing.svg").read_bytes()


def test_render_as_json(render: Render, tmp_path: Path) -> None:
    code, out, _ = render(GOLDEN, "--step", 6, "-o", "x.dot", "--json")
    assert code == 0
    assert json.loads(out) == {
        "command": "render",
        "output": "x.dot",
        "name": "sharing",
        "place": "action 6 of 0 to 9",
        "doubt": None,
        "nodes": 15,
        "edges": 19,
        "kinds": {
            "request": 3,
            "left": 0,
            "block": 12,
            "holds": 10,
            "parent": 4,
            "next free": 5,
        },
    }
    assert (tmp_path / "x.dot").exists()


def test_render_a_recording(render: Render, tmp_path: Path) -> None:
    toy = OWN / "toy_reset"
    for at in ("scheduled", "updated"):
        code, out, _ = render("--recording", toy, "--step", 18, "--at", at)
        assert code == 0
        assert f"toy_reset, step 18 of 0 to 48, {at}; requests: 2, blocks: 12" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "toy_reset-18-updated.svg",
        "toy_reset-18.svg",
    ]


def test_render_tells_of_doubt(render: Render, tmp_path: Path) -> None:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    told = re.sub(r'"digest":"\w+"', f'"digest":"{"0" * 16}"', lines[1])
    (tmp_path / "x.jsonl").write_text(f"{lines[0]}\n{told}\n", encoding="utf-8")
    code, out, _ = render("x.jsonl")
    assert code == 0
    assert out.splitlines()[1].startswith("  warning: the trace records another state")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give a TRACE, or --recording PREFIX, and not both"),
        ((GOLDEN, "--recording", OWN / "dup"), "give a TRACE, or --recording PREFIX, and not both"),
        ((GOLDEN, "--step", 10), "there is no step 10; it has steps 0 to 9"),
        ((GOLDEN, "--step", -1), "there is no step -1; it has steps 0 to 9"),
        (("--recording", OWN / "dup", "--step", 200), "no step 200; it has steps 0 to 101"),
        ((GOLDEN, "-o", "x.pdf"), "give one of .svg, .png, .graphml, .dot"),
        ((GOLDEN, "-o", "."), "is a folder"),
        ((GOLDEN, "-o", "no/x.svg"), "cannot be written (No such file or directory)"),
        (("nothing.jsonl",), "cannot be read"),
        (("--recording", "nothing"), "config.json: there is no such file"),
        ((GOLDEN, "--at", "never"), "never"),
    ],
)
def test_what_render_refuses(render: Render, args: tuple[object, ...], says: str) -> None:
    code, out, err = render(*args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_trace_without_actions(render: Render, tmp_path: Path) -> None:
    record(tmp_path / "x.jsonl", machine(), ())
    code, _, err = render("x.jsonl")
    assert code == 2
    assert "the trace has no action" in err


def test_the_default_name_is_one_file_here(render: Render, tmp_path: Path) -> None:
    odd = tmp_path / "..-a b\n<c>.jsonl"
    record(odd, machine(), TWO)
    code, out, _ = render(odd)
    assert code == 0
    assert out.startswith("a_b_c_-2.svg: ..-a b\\n<c>")
    assert (tmp_path / "a_b_c_-2.svg").exists()


def test_graph_at_the_last_step() -> None:
    trace: Trace = read_trace(GOLDEN)
    assert set(graph_at(trace)) == set(graph_at(trace, 9))
    assert graph_at(trace).graph["place"] == "action 9 of 0 to 9"
