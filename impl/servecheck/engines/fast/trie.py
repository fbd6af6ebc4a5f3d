"""Keys of the fast engine: a radix tree of texts, in full blocks, which also is the index.

Theory of operation. The specification names a full block by the triple (namespace, parent's name,
tokens). Here a name is a *place* in a tree: texts that agree up to a block go the same way down to
it, and only they do, so equality of names costs nothing and cannot collide as a hash can. A node of
the tree is a *run*: blocks that follow each other and have been told apart by nobody yet. Where two
texts part, a run is split in two. So what a prompt costs is a dictionary step and two comparisons
of slices for each run on its way, however many blocks that is; no object is made for a block.

A run knows the resident block at each of its places (-1: none), and the younger copies where there
are some. A look-up reads along the way until a place is empty. A place lives as long as something
needs it: a block that carries its name, a request whose text goes so far, or a place behind it;
and those at the end of a run, until they are half of it.
So when a parent's block is evicted while a child's stays, the parent's place stays too; if its text
comes back it is the same place, and the child is found again (IDX-2).

The tokens themselves stand in a text of their own (`servecheck.engines.fast.text`), so that what
was logged stays true whatever becomes of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servecheck.engines.fast.log import REMOVED, STORED, Entry
from servecheck.engines.fast.text import Text
from servespec.chain import Chain, Namespace, Tokens


class Run:
    """Places that follow each other: those of `text` from `start` on, as many as `blocks`. Or the
    root of a namespace, which has none."""

    __slots__ = ("blocks", "children", "ends", "key", "others", "parent", "start", "text")

    def __init__(
        self, parent: Run | None, key: Tokens, text: Text, start: int, blocks: list[int]
    ) -> None:
        self.parent = parent
        self.key = key
        """Tokens of the first block: by them its parent finds it."""
        self.text = text
        self.start = start
        self.blocks = blocks
        """The oldest resident copy at each place; -1 if there is none."""
        self.others: dict[int, list[int]] | None = None
        """Younger copies, oldest first, by place in the text: they are rare."""
        self.children: dict[Tokens, Run] = {}
        self.ends = 0
        """Requests whose full blocks end with this run."""

    @property
    def stop(self) -> int:
        """The place in the text behind the last one."""
        return self.start + len(self.blocks)

    def copies(self, place: int) -> tuple[int, ...]:
        """All resident blocks that carry this name, oldest first."""
        oldest = self.blocks[place - self.start]
        return () if oldest < 0 else (oldest, *(self.others or {}).get(place, ()))


class Names:
    """The way of one text: the run with which its full blocks end, and how many these are."""

    __slots__ = ("count", "leaf")

    def __init__(self) -> None:
        self.leaf: Run | None = None
        self.count = 0


class Trie:
    """The runs of all namespaces that are in use, and who carries which name.

    Args:
        num_blocks: blocks of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self.roots: dict[Namespace, Run] = {}
        self.carried: list[Run | None] = [None] * num_blocks
        """By block: the run of its name, if it has one,"""
        self.places = [0] * num_blocks
        """and the place in the text of that run."""

    # --- texts ---

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        """Go on along the full blocks of `text` that `names` lacks; what nobody had is made."""
        start, stop = names.count * size, len(text) // size * size
        if start >= stop:
            return
        names.count = stop // size
        leaf = names.leaf
        if leaf is None:
            root = self.roots.get(namespace)
            if root is None:
                root = Run(None, (), Text(None, 0, namespace, size, []), 0, [])
                self.roots[namespace] = root
            names.leaf = self._go_on(root, text, start, stop)
        else:
            known = leaf.text.tokens
            whole = (leaf.start + len(leaf.blocks)) * size == len(known)
            if whole and leaf.ends == 1 and not leaf.children:
                # Nobody else is here, or has gone on from here: the run itself grows.
                known += text[start:stop]
                leaf.blocks += [-1] * ((stop - start) // size)
                return
            names.leaf = self._go_on(leaf, text, start, stop)
            leaf.ends -= 1
        names.leaf.ends += 1

    def _go_on(self, run: Run, text: list[int], start: int, stop: int) -> Run:
        """The run at whose end `text` has come to `stop`, on the way down from the end of `run`."""
        size = run.text.size
        while start < stop:
            key = tuple(text[start : start + size])
            child = run.children.get(key)
            if child is None:
                more = Text(run.text, run.stop, run.text.namespace, size, text[start:stop])
                child = run.children[key] = Run(run, key, more, 0, [-1] * ((stop - start) // size))
                return child
            self._prune(child)  # it stays: something needs it, or some block of it is there
            shared = _shared(child, text, start, stop)
            if shared < len(child.blocks):
                child = self._split(child, shared)
            start += shared * size
            run = child
        return run

    def _split(self, run: Run, count: int) -> Run:
        """Part a run behind its first `count` blocks: the first part, which is new. The second one
        remains what it was for those who end there or go on from there."""
        parent, size, cut = run.parent, run.text.size, run.start + count
        if parent is None:
            raise LookupError("the root of a trie has no blocks")
        tokens = run.text.tokens[run.start * size : cut * size]
        text = Text(parent.text, parent.stop, run.text.namespace, size, tokens)
        front = parent.children[run.key] = Run(parent, run.key, text, 0, run.blocks[:count])
        for place in range(run.start, cut):
            for block in run.copies(place):
                self.carried[block] = front
                self.places[block] = place - run.start
        if run.others:
            mine = {p - run.start: copies for p, copies in run.others.items() if p < cut}
            front.others = mine or None
            run.others = {p: copies for p, copies in run.others.items() if p >= cut} or None
        run.parent, run.start, run.blocks = front, cut, run.blocks[count:]
        run.key = tuple(run.text.tokens[cut * size : (cut + 1) * size])
        front.children[run.key] = run
        return front

    def path(self, names: Names) -> Iterator[Run]:
        """The runs of a text, the last one first."""
        run = names.leaf
        while run is not None and run.parent is not None:
            yield run
            run = run.parent

    def chains(self, names: Names) -> tuple[Chain, ...]:
        """The specification's names of the full blocks of a text."""
        runs = reversed(tuple(self.path(names)))
        return tuple(run.text.chain(place) for run in runs for place in range(run.start, run.stop))

    def drop(self, names: Names) -> None:
        """A text is gone: nobody needs its way for it any more."""
        leaf = names.leaf
        if leaf is None:
            return
        names.leaf, names.count = None, 0
        leaf.ends -= 1
        self._prune(leaf)

    def _prune(self, run: Run) -> None:
        """Forget the last places of a run that nothing needs, and those that only they needed."""
        while not run.ends and not run.children:
            blocks, parent = run.blocks, run.parent
            length = len(blocks)
            while length and blocks[length - 1] < 0:
                length -= 1
            del blocks[length:]
            if blocks:
                size, text = run.text.size, run.text
                if len(text.tokens) > 2 * run.stop * size:
                    tokens = text.tokens[: run.stop * size]
                    run.text = Text(text.parent, text.at, text.namespace, size, tokens)
                return
            if parent is None:
                del self.roots[run.text.namespace]
                return
            del parent.children[run.key]
            run = parent

    # --- who carries which name ---

    def key(self, block: int) -> Chain | None:
        """The specification's name of a block, if it has one."""
        run = self.carried[block]
        return None if run is None else run.text.chain(self.places[block])

    def index(self) -> dict[Chain, tuple[int, ...]]:
        """All names that resident blocks carry, and their copies, oldest first."""
        return {
            run.text.chain(place): run.copies(place)
            for run, place in zip(self.carried, self.places, strict=True)
            if run is not None
        }

    def match(self, names: Names, limit: int, newest: bool) -> list[int]:
        """The blocks of the longest cached prefix of a text, at most `limit`."""
        hits: list[int] = []
        for run in reversed(tuple(self.path(names))):
            blocks = run.blocks
            if newest and run.others:
                blocks = list(blocks)
                for place, copies in run.others.items():
                    blocks[place - run.start] = copies[-1]
            if -1 in blocks:
                hits += blocks[: blocks.index(-1)]
                break
            hits += blocks
        del hits[limit:]
        return hits

    def publish(self, blocks: tuple[int, ...], names: Names, start: int, log: list[Entry]) -> None:
        """Blocks start … of a text get their names and can be found."""
        behind: list[Run] = []
        end = names.count
        for run in self.path(names):
            end -= len(run.blocks)
            if end <= start:
                break
            behind.append(run)
        else:
            return
        index = start - end
        while True:
            mine = blocks[: len(run.blocks) - index]
            self._publish(run, index, mine, log)
            blocks = blocks[len(mine) :]
            if not blocks:
                return
            index, run = 0, behind.pop()

    def _publish(self, run: Run, index: int, blocks: tuple[int, ...], log: list[Entry]) -> None:
        end, place = index + len(blocks), run.start + index
        carried, places = self.carried, self.places
        log.append((STORED, blocks, run.text, place))
        if run.blocks[index:end].count(-1) == len(blocks):
            run.blocks[index:end] = blocks
        else:
            for i, block in enumerate(blocks):
                if run.blocks[index + i] < 0:
                    run.blocks[index + i] = block
                else:
                    run.others = run.others or {}
                    run.others.setdefault(place + i, []).append(block)
        for block in blocks:
            carried[block] = run
            places[block] = place
            place += 1

    def restore(self, names: Names, copies: Sequence[int]) -> None:
        """Blocks carry the name of the last block of a text, oldest first; nobody is told."""
        for block in copies:
            for run in self.path(names):
                self._publish(run, len(run.blocks) - 1, (block,), [])
                break

    def evict(self, blocks: Sequence[int], log: list[Entry]) -> None:
        """Blocks lose their names, one after the other. Tables are let go from their ends, so what
        is evicted mostly is the end of a run, last block first: such a stretch goes as one."""
        carried, places = self.carried, self.places
        at = 0
        while at < len(blocks):
            block = blocks[at]
            run, place = carried[block], places[block]
            if run is None:
                raise LookupError(f"block {block} has no name")
            index, count = place - run.start, 1
            if run.others is not None:
                _leave(run, place, block)
            else:
                here, most = run.blocks, min(index + 1, len(blocks) - at)
                while count < most and here[index - count] == blocks[at + count]:
                    count += 1
                here[index - count + 1 : index + 1] = [-1] * count
            gone = blocks[at : at + count]
            for block in gone:
                carried[block] = None
            log.append((REMOVED, gone, run.text, place))
            at += count
            # Places at the end that nothing needs are trimmed when they are half of the run.
            low = index - count + 1
            if 2 * low < len(run.blocks) or run.blocks[low - 1] < 0:
                self._prune(run)

    def clear(self) -> None:
        """All blocks lose their names, and nobody says so for each."""
        self.evict([b for b, run in enumerate(self.carried) if run is not None], [])


def _shared(run: Run, text: list[int], start: int, stop: int) -> int:
    """How many blocks of a run are those of `text` from `start` on; the first one is."""
    size, theirs, base = run.text.size, run.text.tokens, run.start * run.text.size
    most = min(len(run.blocks), (stop - start) // size)
    if text[start : start + most * size] == theirs[base : base + most * size]:
        return most
    known, end = 1, most
    while end - known > 1:
        middle = (known + end) // 2
        here, there = known * size, middle * size
        if text[start + here : start + there] == theirs[base + here : base + there]:
            known = middle
        else:
            end = middle
    return known


def _leave(run: Run, place: int, block: int) -> None:
    """One copy of a name goes; the others stay in their order."""
    others = run.others or {}
    copies = [*run.copies(place)]
    copies.remove(block)
    run.blocks[place - run.start] = copies[0] if copies else -1
    others.pop(place, None)
    if copies[1:]:
        others[place] = copies[1:]
    run.others = others or None
