"""A state as a graph: who holds which block, what continues what, in which order blocks are taken.

    request ──holds, position──▶ block ──parent──▶ block
                                 block ──next free──▶ block

Theory of operation. Nodes are named `request ID` and `block NUMBER`; a table that a step in flight
still writes for a request that has left is `left N`. Every edge says in `kind` what it means, and
its key in the graph is its kind: two blocks may be tied twice, because a released table leaves a
block right before its parent in the free queue. So this is networkx's directed graph with parallel
edges. Attributes are whole numbers, texts and truth values, and are absent where they would say
nothing, so any format takes them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import networkx as nx

from servecheck.recording import Recording
from servecheck.trace.model import Trace
from servecheck.view.moment import At, Moment, moment_of_recording, moment_of_trace
from servecheck.view.scene import Holder, Scene, ShownBlock, block_node, scene_of
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import Policy

Graph: TypeAlias = "nx.MultiDiGraph[str]"

HOLDS, PARENT, NEXT_FREE = "holds", "parent", "next free"


def state_graph(state: State, config: Config, policy: Policy) -> Graph:
    """The graph of a state by itself, in which nothing is marked as changed."""
    return graph_of(scene_of(Moment(Machine(config, policy), state)))


def graph_at(trace: Trace, step: int | None = None) -> Graph:
    """The graph after action `step` of a trace, of its last one if none is named.

    Raises:
        ViewError: there is no such step, or the run cannot get there.
    """
    return graph_of(scene_of(moment_of_trace(trace, step)))


def recording_graph_at(
    recording: Recording, step: int | None = None, at: At = "scheduled"
) -> Graph:
    """The graph after the pass, or the outcome, of a step of a recording.

    Raises:
        ViewError: there is no such step, or the specification does not get there.
        RecordingError: the recording cannot be replayed.
    """
    return graph_of(scene_of(moment_of_recording(recording, step, at)))


def graph_of(scene: Scene) -> Graph:
    """The graph of what there is to see."""
    graph: Graph = nx.MultiDiGraph(
        name=scene.name,
        place=scene.place,
        doing=scene.doing,
        doubt=scene.doubt,
        block_size=scene.block_size,
    )
    for holder in scene.holders:
        graph.add_node(holder.node, **_about_holder(holder))
    for block in scene.blocks.values():
        graph.add_node(block.node, **_about_block(block))
    for holder in scene.holders:
        for position, number in enumerate(holder.table):
            to = block_node(number)
            graph.add_edge(holder.node, to, HOLDS, kind=HOLDS, position=position)
    for block in scene.blocks.values():
        if block.parent is not None:
            graph.add_edge(block.node, block_node(block.parent), PARENT, kind=PARENT)
    for one, other in pairwise(scene.free):
        graph.add_edge(block_node(one), block_node(other), NEXT_FREE, kind=NEXT_FREE)
    return graph


def _about_holder(holder: Holder) -> dict[str, object]:
    if holder.status == "left":
        return {"kind": "left", "status": holder.status, "place": holder.place}
    return {
        "kind": "request",
        "id": holder.name,
        "status": holder.status,
        "place": holder.place,
        "computed": holder.computed,
        "length": holder.length,
        "in_flight": holder.in_flight,
        "namespace": holder.namespace,
    }


def _about_block(block: ShownBlock) -> dict[str, object]:
    about: dict[str, object] = {
        "kind": "block",
        "number": block.number,
        "ref_count": block.ref_count,
        "held": block.queue is None,
        "hashed": block.hashed,
        "in_flight": block.written,
        "changes": ", ".join(change.value for change in block.changes),
    }
    if block.queue is not None:
        about["queue"] = block.queue
    if block.namespace:
        about["namespace"] = block.namespace
    if block.hashed:
        about |= {
            "key": block.key,
            "depth": block.depth,
            "copies": block.copies,
            "duplicate": block.found is not None,
        }
    return about
