"""The graph of a search, for other tools: states as nodes, transitions as edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import networkx as nx

from servecheck.explore.errors import ScopeError
from servecheck.explore.search import Found
from servecheck.explore.system import System

S = TypeVar("S", bound=Hashable)
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)

MOST = 20_000
"""States that are drawn; nobody looks at more."""

if TYPE_CHECKING:
    Graph = nx.MultiDiGraph[str]
else:
    Graph = nx.MultiDiGraph


def graph_of(
    system: System[S, A, K],
    found: Found[K],
    name: str,
    state: Callable[[S], str],
    action: Callable[[A], str],
) -> Graph:
    """Every state that was found, labelled by `state`, and every transition, labelled by `action`.

    Raises:
        ScopeError: there are too many, or the search kept no transitions.
    """
    if found.states > MOST:
        raise ScopeError(
            f"a graph of {found.states:,} states is no picture", f"limit it to {MOST:,} states"
        )
    edges = found.graph.edges
    if edges is None:
        raise ScopeError("the search kept no transitions", "search with `edges`")
    graph: Graph = nx.MultiDiGraph(name=name)
    levels = [*found.graph.depths, found.states]
    for depth, (first, last) in enumerate(pairwise(levels)):
        for number in range(first, last):
            label = state(system.restore(found.graph.keys[number]))
            graph.add_node(str(number), label=label, depth=depth)
    for number, successors in enumerate(edges):
        here = system.restore(found.graph.keys[number])
        for taken, after in zip(system.enabled(here), successors, strict=True):
            graph.add_edge(str(number), str(after), kind="action", label=action(taken))
    return graph
