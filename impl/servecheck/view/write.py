"""A scene as a file; what kind of file, its ending says.

The whole content is made before the file is opened, so what cannot be drawn leaves no file. A file
that cannot be written whole is taken away again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import networkx as nx

from servecheck.view.errors import ViewError
from servecheck.view.graph import Graph, graph_of
from servecheck.view.layout import layout
from servecheck.view.png import png
from servecheck.view.scene import Scene
from servecheck.view.svg import svg


def graphml(graph: Graph) -> bytes:
    """A graph as GraphML."""
    # Its edges are named by their keys, which there must differ.
    numbered: Graph = nx.MultiDiGraph(**graph.graph)
    numbered.add_nodes_from(graph.nodes(data=True))
    for number, (one, other, about) in enumerate(graph.edges(data=True)):
        numbered.add_edge(one, other, f"e{number}", **about)
    out = BytesIO()
    nx.write_graphml_xml(numbered, out)
    return out.getvalue()


def dot(graph: Graph) -> str:
    """A graph in the language of Graphviz."""
    return "".join(f"{line}\n" for line in _dot(graph))


def _dot(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.graph['name'])} {{"
    yield "  rankdir=LR;"
    yield "  node [shape=box];"
    for node, about in graph.nodes(data=True):
        yield f"  {_quoted(node)} [{_attributes(about)}];"
    for one, other, about in graph.edges(data=True):
        # The queue is an order, and must not push the blocks of a text apart.
        queued = ", constraint=false, style=dotted" if about["kind"] == "next free" else ""
        yield f"  {_quoted(one)} -> {_quoted(other)} [{_attributes(about)}{queued}];"
    yield "}"


def _attributes(about: dict[str, object]) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in about.items())


def _quoted(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


WRITERS: dict[str, Callable[[Scene], bytes]] = {
    ".svg": lambda scene: svg(layout(scene)).encode(),
    ".png": lambda scene: png(layout(scene)),
    ".graphml": lambda scene: graphml(graph_of(scene)),
    ".dot": lambda scene: dot(graph_of(scene)).encode(),
}
"""What each ending stands for."""


def writer_for(path: Path) -> Callable[[Scene], bytes]:
    """What makes the content of a file with this name.

    Raises:
        ViewError: its ending is none of those that are known.
    """
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        known = ", ".join(WRITERS)
        raise ViewError(f"{path}: what to write is told by the ending; give one of {known}")
    return writer


def write(scene: Scene, path: Path) -> None:
    """Write a scene to a file.

    Raises:
        ViewError: the ending is not known, the file cannot be written, or not this kind of file.
    """
    save(writer_for(path)(scene), path)


def save(content: bytes, path: Path) -> None:
    """Write the content of a file, whole or not at all.

    Raises:
        ViewError: it cannot be written.
    """
    opened = False
    try:
        with path.open("wb") as file:
            opened = True
            file.write(content)
    except (OSError, ValueError) as error:
        if opened and path.is_file():
            with suppress(OSError):
                path.unlink()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ViewError(
            f"{path}: cannot be written ({why}); free some space there, or name another file"
        ) from None
