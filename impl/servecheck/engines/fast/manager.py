"""Block bookkeeping alone: texts that begin, grow by a token, and end, over the fast pool.

Theory of operation. This is what a serving loop asks of its cache manager when all decisions are
made elsewhere: a text begins and shares what is cached of it, it grows token by token and takes a
block when the last one is full, it ends. Full blocks are published at once.
"""

from __future__ import annotations

from servecheck.engines.fast.log import Entry, evicted
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names
from servespec import policy as choose
from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.config import Config
from servespec.policy import Policy


class _Text:
    __slots__ = ("edge", "names", "namespace", "table", "tokens")

    def __init__(
        self, namespace: Namespace, tokens: list[int], names: Names, table: list[int], edge: int
    ) -> None:
        self.namespace = namespace
        self.tokens = tokens
        self.names = names
        self.table = table
        self.edge = edge
        """Length at which the last block is full."""


class BlockManager:
    """Texts and their blocks."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.size = config.block_size
        self.policy = policy
        self.log: list[Entry] = []
        self.pool = FastPool(config, policy, self.log)
        self.texts: dict[str, _Text] = {}

    def begin(self, text_id: str, prompt: Tokens, namespace: Namespace = PUBLIC) -> int | None:
        """Hold blocks for a prompt: how many of its tokens were cached; None for want of room."""
        tokens, names, pool, size = list(prompt), Names(), self.pool, self.size
        pool.trie.extend(names, namespace, tokens, size)
        hits = pool.match(names, choose.hit_limit(self.policy, len(tokens), size))
        new = -(-len(tokens) // size) - len(hits)
        if new + pool.idle(hits) > pool.free:
            pool.trie.drop(names)
            return None
        pool.acquire(hits)
        table = hits + pool.extend(new)
        pool.publish(table, names, len(hits), names.count)
        self.texts[text_id] = _Text(namespace, tokens, names, table, len(table) * size)
        return len(hits) * size

    def grow(self, text_id: str, token: int) -> bool:
        """One token more; False for want of a block, and then nothing changes."""
        text = self.texts[text_id]
        tokens = text.tokens
        length = len(tokens) + 1
        if length > text.edge:
            if not self.pool.free:
                return False
            text.table += self.pool.extend(1)
            text.edge += self.size
        tokens.append(token)
        if length == text.edge:
            at = text.names.count
            self.pool.trie.extend(text.names, text.namespace, tokens, self.size)
            self.pool.publish(text.table, text.names, at, at + 1)
        return True

    def end(self, text_id: str) -> None:
        """Let a text's blocks go."""
        text = self.texts.pop(text_id)
        self.pool.release(text.table)
        self.pool.trie.drop(text.names)

    def evictions(self) -> int:
        """Blocks that lost their name since the last call."""
        found = evicted(self.log)
        self.log.clear()
        return found
