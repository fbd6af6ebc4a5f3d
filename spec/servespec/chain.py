"""Identity of cached content: a chain of token runs under a namespace (rule 2).

Two blocks hold the same content exactly when they agree in three things: the namespace of the
request, everything that stands before the block, and the block's own tokens. So the identity of
a full block, its *key*, is the triple (namespace, parent key, tokens). An engine replaces the
triple by a hash of it; the specification keeps the triple itself, which cannot collide (IDX-3).

Chains are *interned*: the same triple is always the same object, so equality and hashing are by
identity and cost O(1) however long the prefix is. Nothing here recurses: a prompt of 131,072
tokens is a chain of 8,192 links, and printing, copying or pickling it walks a loop.

The same links with one token each are the *content* of a single KV slot, see `servespec.pool`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary, WeakValueDictionary

from attrs import frozen

from servespec.errors import SpecError

Token = int
Tokens = tuple[int, ...]


@frozen
class Namespace:
    """Who may share with whom: the pair (adapter, salt), never a concatenation of the two."""

    adapter: str | None = None
    salt: str | None = None


PUBLIC = Namespace()


@frozen(eq=False, repr=False)
class Chain:
    """One link. Make it with `link`, never directly: equality is identity."""

    namespace: Namespace
    parent: Chain | None
    tokens: Tokens
    length: int
    """Tokens from the start of the text to the end of this link."""

    def path(self) -> Iterator[Chain]:
        """This link and its ancestors, last to first."""
        here: Chain | None = self
        while here is not None:
            yield here
            here = here.parent

    def runs(self) -> tuple[Tokens, ...]:
        """The token runs of the whole chain, first to last."""
        return tuple(node.tokens for node in self.path())[::-1]

    def __repr__(self) -> str:
        unknown = [self]
        while unknown[-1] not in _DIGESTS and unknown[-1].parent is not None:
            unknown.append(unknown[-1].parent)
        for node in reversed(unknown):
            before = repr(node.namespace).encode() if node.parent is None else _DIGESTS[node.parent]
            data = before + repr(node.tokens).encode()
            _DIGESTS[node] = hashlib.blake2b(data, digest_size=8).digest()
        return f"Chain({self.length} tokens, {_DIGESTS[self][:4].hex()})"

    def __reduce__(self) -> tuple[object, ...]:
        return chain, (self.namespace, self.runs())


_DIGESTS: WeakKeyDictionary[Chain, bytes] = WeakKeyDictionary()
"""What `repr` shows, kept: a state shows many links of one chain."""

_LINKS: WeakValueDictionary[tuple[Namespace | Chain, Tokens], Chain] = WeakValueDictionary()


def link(namespace: Namespace, parent: Chain | None, tokens: Tokens) -> Chain:
    """Rule 2: the key (namespace, parent key, tokens); the first block has no parent."""
    before: Namespace | Chain = namespace if parent is None else parent
    found = _LINKS.get((before, tokens))
    if found is None or found.namespace != namespace:
        if not tokens or (parent is not None and parent.namespace != namespace):
            raise SpecError(
                "link",
                f"{tokens} under {namespace} after {parent!r}",
                "give at least one token, and the namespace of the parent",
            )
        length = len(tokens) + (0 if parent is None else parent.length)
        found = _LINKS[before, tokens] = Chain(namespace, parent, tokens, length)
    return found


def chain(namespace: Namespace, runs: tuple[Tokens, ...]) -> Chain:
    """The chain of all `runs`, at least one."""
    node = link(namespace, None, runs[0])
    for tokens in runs[1:]:
        node = link(namespace, node, tokens)
    return node


def keys(namespace: Namespace, text: Tokens, block_size: int) -> tuple[Chain, ...]:
    """Rule 2: the keys of all full blocks of a text; a partial last block has none."""
    return extend_keys((), namespace, text, block_size)


def extend_keys(
    known: tuple[Chain, ...], namespace: Namespace, text: Tokens, block_size: int
) -> tuple[Chain, ...]:
    """The keys of `text`, of which the first `len(known)` are known already."""
    found = list(known)
    for end in range((len(known) + 1) * block_size, len(text) + 1, block_size):
        parent = found[-1] if found else None
        found.append(link(namespace, parent, text[end - block_size : end]))
    return tuple(found)
