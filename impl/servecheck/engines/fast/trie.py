"""Keys of the fast engine: nodes of a trie, one for each distinct full block of text.

Theory of operation. The specification names a full block by the triple (namespace, parent's name,
tokens). Here the name is a *node*, reached from its parent by its tokens. Two texts that agree up
to a block reach the same node, and only they do: equality of names is identity of nodes, it costs
nothing, and it cannot collide as a hash can. What a node costs is one dictionary step a block, no
work a token, less than a cryptographic hash of the same block.

The node also is the index entry: it knows the resident blocks that carry its name, oldest first. A
look-up walks the trie while there are some. A node lives as long as something needs it: a block
that carries its name, a request whose text it is part of, or a child. So when a parent's block is
evicted while a child's stays, the parent's node stays too; if the parent's text comes back it is
the same node, and the child is found again (IDX-2).
"""

from __future__ import annotations

from collections.abc import Sequence

from servespec.chain import Chain, Namespace, Tokens, link


class Node:
    """A full block of text, or the root of a namespace. `block` is the oldest resident copy, -1 if
    there is none; `others` are the younger ones, oldest first; `held` counts the requests whose
    text has this block."""

    __slots__ = ("_known", "block", "children", "held", "namespace", "others", "parent", "tokens")

    _known: Chain
    namespace: Namespace
    """Of a root."""

    def __init__(self, parent: Node | None, tokens: Tokens) -> None:
        self.parent = parent
        self.tokens = tokens
        # Most nodes have one child or none and one copy: what is rare is made when it is there.
        self.children: dict[Tokens, Node] | None = None
        self.block = -1
        self.others: list[int] | None = None
        self.held = 0

    def child(self, tokens: Tokens) -> Node:
        """The block that goes on with these tokens; made if nobody has it."""
        children = self.children
        if children is None:
            found = Node(self, tokens)
            self.children = {tokens: found}
            return found
        known = children.get(tokens)
        if known is None:
            known = children[tokens] = Node(self, tokens)
        return known

    @property
    def copies(self) -> tuple[int, ...]:
        """All resident blocks that carry this name, oldest first."""
        return () if self.block < 0 else (self.block, *(self.others or ()))

    @property
    def chain(self) -> Chain:
        """The specification's name of this block; found once, kept as long as the node."""
        node, unknown = self, list[Node]()
        found: Chain | None = None
        while node.parent is not None:
            try:
                found = node._known
                break
            except AttributeError:
                unknown.append(node)
                node = node.parent
        namespace = node.namespace if found is None else found.namespace
        for node in reversed(unknown):
            found = node._known = link(namespace, found, node.tokens)
        if found is None:
            raise LookupError("the root of a trie is no block")
        return found


class Trie:
    """The roots, one for each namespace that is in use."""

    def __init__(self) -> None:
        self.roots: dict[Namespace, Node] = {}

    def root(self, namespace: Namespace) -> Node:
        """Where the texts of a namespace begin."""
        found = self.roots.get(namespace)
        if found is None:
            found = self.roots[namespace] = Node(None, ())
            found.namespace = namespace
        return found

    def extend(
        self, known: list[Node], namespace: Namespace, text: Sequence[int], size: int
    ) -> None:
        """Append to `known` the nodes of the full blocks of `text` that it lacks, and hold them."""
        start, length = len(known) * size, len(text)
        if start + size > length:
            return
        node = known[-1] if known else self.root(namespace)
        for begin in range(start, length - size + 1, size):
            node = node.child(tuple(text[begin : begin + size]))
            node.held += 1
            known.append(node)

    def grow(self, known: list[Node], namespace: Namespace, tokens: Tokens) -> None:
        """Append to `known` the node of one full block more."""
        node = (known[-1] if known else self.root(namespace)).child(tokens)
        node.held += 1
        known.append(node)

    def drop(self, nodes: list[Node]) -> None:
        """A request is gone: nobody holds these nodes for it any more."""
        for node in reversed(nodes):
            node.held -= 1
            if node.held == 0 and node.block < 0 and not node.children:
                self.prune(node)

    def prune(self, node: Node) -> None:
        """Forget a node that nothing needs, and those that only it needed."""
        while node.held == 0 and node.block < 0 and not node.children:
            parent = node.parent
            if parent is None:
                self.roots.pop(node.namespace, None)
                return
            siblings = parent.children
            if siblings is None or siblings.get(node.tokens) is not node:
                return  # gone already, with a child of its
            del siblings[node.tokens]
            node = parent
