"""Faults of namespaces: who may share with whom."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.trie import Names, Run, Trie
from servecheck.zoo.entry import fault
from servespec.chain import PUBLIC, Namespace


@fault("namespace-omitted", expects="IDX-3", needs="equal texts of two adapters")
class AdapterLeftOut(Trie):
    """The name of a block leaves the adapter out.

    A request is served what another model computed.
    """

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        super().extend(names, Namespace(None, namespace.salt), text, size)


@fault("namespace-omitted", expects="IDX-3", needs="equal texts of two salts")
class SaltLeftOut(Trie):
    """The name of a block leaves the salt out.

    By the time of an answer one tenant can tell what another has asked.
    """

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        super().extend(names, Namespace(namespace.adapter, None), text, size)


@fault("identity-collision", expects="IDX-3", needs="adapter and salt that spell the same")
class JoinedUp(Trie):
    """Adapter and salt are joined to one word.

    Different pairs spell the same, and share.
    """

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        joined = (namespace.adapter or "") + (namespace.salt or "")
        super().extend(names, Namespace(joined or None), text, size)


@fault("identity-collision", expects="IDX-3", needs="two blocks equal but for the namespace")
class NotChained(Trie):
    """The namespace is in the name of the first block, and is not handed on to those behind it.

    Two texts that differ in the namespace alone share all but the first block.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.first: dict[Names, Names] = {}

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        if len(text) >= size and names not in self.first:
            self.first[names] = Names()
            super().extend(self.first[names], namespace, text[:size], size)
            # The public one keeps the first block a run of its own.
            unsalted = Names()
            super().extend(unsalted, PUBLIC, text[:size], size)
        super().extend(names, PUBLIC, text, size)

    def path(self, names: Names) -> Iterator[Run]:
        if names in self.first:
            yield from list(super().path(names))[:-1]
            names = self.first[names]
        yield from super().path(names)

    def drop(self, names: Names) -> None:
        if names in self.first:
            super().drop(self.first.pop(names))
        super().drop(names)


@fault("namespace-omitted", expects="REQ-1", needs="somebody preempted who has a namespace")
class LostOnResume(FastEngine):
    """A request that is queued again has lost its namespace.

    One of several ways to build a request did not hand it on.
    """

    def _send_back(self, index: int) -> None:
        request = self.running[index]
        super()._send_back(index)
        if self.shares:
            self.pool.trie.drop(request.names)
            request.namespace = PUBLIC
            self.pool.trie.extend(request.names, PUBLIC, request.text, self.size)
