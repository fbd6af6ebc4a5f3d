"""Text in full blocks, and the specification's names of its blocks.

Theory of operation. A text only ever grows at its end, and goes on where a place of its parent's
stands. So (text, place) says what a block held, and all that stood before it, for as long as
somebody remembers the pair. The specification's name, a chain, is made when somebody asks, which
a serving loop does not.
"""

from __future__ import annotations

from servespec.chain import Chain, Namespace, link


class Text:
    """Tokens of full blocks, which go on behind the first `at` blocks of `parent`."""

    __slots__ = ("_chains", "at", "namespace", "parent", "size", "tokens")

    def __init__(
        self, parent: Text | None, at: int, namespace: Namespace, size: int, tokens: list[int]
    ) -> None:
        self.parent = parent
        self.at = at
        self.namespace = namespace
        self.size = size
        """Tokens of a block."""
        self.tokens = tokens
        self._chains: list[Chain] = []

    def chain(self, place: int) -> Chain:
        """The specification's name of the block at `place`; found once, kept as long as the text.
        A loop: a long text may be a long list of parents."""
        unknown: list[tuple[Text, int]] = []
        text, last = self, place
        while len(text._chains) <= last:
            unknown.append((text, last))
            if text.parent is None:
                break
            text, last = text.parent, text.at - 1
        for text, last in reversed(unknown):
            text._name(last)
        return self._chains[place]

    def _name(self, last: int) -> None:
        known, tokens, size = self._chains, self.tokens, self.size
        before = known[-1] if known else None
        if not known and self.parent is not None and self.at:
            before = self.parent._chains[self.at - 1]
        for start in range(len(known) * size, (last + 1) * size, size):
            before = link(self.namespace, before, tuple(tokens[start : start + size]))
            known.append(before)
