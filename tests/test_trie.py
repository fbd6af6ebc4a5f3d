"""Stories about the tree of texts alone: how runs grow, part, are found, and are let go.

Blocks of two tokens, numbered from 0 on: no pool keeps one out here. Texts are made of small
numbers; a letter is a block: A is 1 1, B is 2 2 and so on.
"""

from __future__ import annotations

from servecheck.engines.fast.log import REMOVED, STORED, Entry
from servecheck.engines.fast.trie import Names, Run, Trie
from servespec.chain import PUBLIC, Namespace, Tokens, keys

SIZE = 2
BLOCKS = 12


def tokens(letters: str) -> list[int]:
    return [token for letter in letters for token in (ord(letter) - 64,) * SIZE]


def key(letter: str) -> Tokens:
    return tuple(tokens(letter))


class Tree:
    """A tree of texts, what it logs, and the ways of its texts."""

    def __init__(self) -> None:
        self.trie = Trie(BLOCKS)
        self.log: list[Entry] = []

    def text(self, letters: str, names: Names | None = None) -> Names:
        """A text comes, or goes on."""
        way = Names() if names is None else names
        self.trie.extend(way, PUBLIC, tokens(letters), SIZE)
        return way

    def publish(self, names: Names, start: int, *blocks: int) -> None:
        self.trie.publish(blocks, names, start, self.log)

    def evict(self, *blocks: int) -> None:
        self.trie.evict(list(blocks), self.log)

    def found(self, names: Names, newest: bool = False) -> list[int]:
        return self.trie.match(names, BLOCKS, newest)

    def path(self, names: Names) -> list[Run]:
        """The runs of a text, the first one first."""
        return list(self.trie.path(names))[::-1]

    def copies(self, names: Names) -> list[tuple[int, ...]]:
        """Of each block of a text: who carries its name."""
        return [run.copies(at) for run in self.path(names) for at in range(run.start, run.stop)]

    def shape(self, names: Names) -> list[list[int]]:
        return [run.blocks for run in self.path(names)]


# --- texts that come and grow --------------------------------------------------------------


def test_a_text_that_grows_alone_stays_one_run() -> None:
    """Given a text of two blocks, published; when it grows by two, then its run does, the places
    are empty until they are published, and a look-up ends before them."""
    tree = Tree()
    names = tree.text("AB")
    tree.publish(names, 0, 5, 6)
    tree.text("ABCD", names)
    assert names.count == 4
    assert tree.shape(names) == [[5, 6, -1, -1]]
    assert tree.found(names) == [5, 6]
    tree.publish(names, 2, 7, 8)
    assert tree.found(names) == [5, 6, 7, 8]
    assert tree.trie.chains(names) == keys(PUBLIC, tuple(tokens("ABCD")), SIZE)


def test_a_text_that_comes_again_goes_the_same_way() -> None:
    """Given a text; when it comes again, whole or with a token more, then it is the same run, which
    both end with; when one of them goes on, it goes on in a run of its own."""
    tree = Tree()
    first, second, third = tree.text("ABC"), tree.text("ABC"), Names()
    tree.trie.extend(third, PUBLIC, [*tokens("ABC"), 9], SIZE)
    assert first.leaf is second.leaf is third.leaf
    assert first.leaf is not None
    assert (first.leaf.ends, tree.shape(first)) == (3, [[-1, -1, -1]])
    tree.text("ABCD", second)
    assert tree.shape(second) == [[-1, -1, -1], [-1]]
    assert tree.shape(first) == [[-1, -1, -1]]
    assert first.leaf.ends == 2


def test_a_text_that_was_let_go_may_come_again() -> None:
    tree = Tree()
    names = tree.text("AB")
    tree.trie.drop(names)
    assert tree.trie.roots == {}
    assert (names.leaf, names.count) == (None, 0)
    tree.text("AB", names)
    assert tree.shape(names) == [[-1, -1]]


def test_another_namespace_is_another_tree() -> None:
    tree = Tree()
    mine, theirs, salted = tree.text("AB"), Names(), Namespace(salt="s")
    tree.publish(mine, 0, 1, 2)
    tree.trie.extend(theirs, salted, tokens("AB"), SIZE)
    assert tree.found(theirs) == []
    assert tree.trie.chains(theirs) == keys(salted, tuple(tokens("AB")), SIZE)
    tree.trie.drop(theirs)
    assert list(tree.trie.roots) == [PUBLIC]


# --- texts that part -----------------------------------------------------------------------


def test_texts_that_part_twice() -> None:
    """Given copies of each block of a text, which is parted behind its second block and then behind
    its fourth; then each run has the copies of its own places, and all are found."""
    tree = Tree()
    whole = tree.text("ABCDE")
    tree.publish(whole, 0, 0, 1, 2, 3, 4)
    tree.publish(whole, 0, 5, 6, 7, 8, 9)
    two, four = tree.text("ABX"), tree.text("ABCDX")
    assert tree.shape(whole) == [[0, 1], [2, 3], [4]]
    assert [run.others for run in tree.path(whole)] == [
        {0: [5], 1: [6]},
        {0: [7], 1: [8]},
        {4: [9]},
    ]
    assert tree.copies(whole) == [(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)]
    assert tree.found(whole) == [0, 1, 2, 3, 4]
    assert tree.found(whole, newest=True) == [5, 6, 7, 8, 9]
    assert tree.found(four, newest=True) == [5, 6, 7, 8]
    assert tree.found(two, newest=True) == [5, 6]
    assert tree.shape(whole) == [[0, 1], [2, 3], [4]], "a look-up changes nothing"
    index = tree.trie.index()
    assert [index[name] for name in tree.trie.chains(whole)] == tree.copies(whole)


def test_of_three_copies_the_newest_is_the_last() -> None:
    tree = Tree()
    names = tree.text("AB")
    for blocks in ((0, 1), (2, 3), (4, 5)):
        tree.publish(names, 0, *blocks)
    assert tree.copies(names) == [(0, 2, 4), (1, 3, 5)]
    assert (tree.found(names), tree.found(names, newest=True)) == ([0, 1], [4, 5])


def test_a_text_that_parts_where_nothing_is_left_trims_first() -> None:
    """Given a run of two blocks that nobody's text goes along any more, of which the second one was
    evicted: its place is kept, it is not half of the run; when a text parts behind the first, then
    that place is forgotten, and no run is left that nothing needs."""
    tree = Tree()
    names = tree.text("AB")
    tree.publish(names, 0, 3, 4)
    tree.trie.drop(names)
    tree.evict(4)
    (run,) = tree.trie.roots[PUBLIC].children.values()
    assert run.blocks == [3, -1]
    other = tree.text("AX")
    assert tree.shape(other) == [[3], [-1]]
    assert list(run.children) == [key("X")]
    assert run.ends == 0
    tree.trie.drop(other)
    assert (run.blocks, run.children) == ([3], {})


# --- what is published ---------------------------------------------------------------------


def test_what_is_published_goes_over_the_ends_of_runs() -> None:
    """Given a text in runs of two, one and two blocks; when all but its first block are published
    at once, then each run gets its part, and is told of apart."""
    tree = Tree()
    names = tree.text("ABCDE")
    tree.text("ABX")
    tree.text("ABCX")
    assert [len(blocks) for blocks in tree.shape(names)] == [2, 1, 2]
    tree.publish(names, 1, 5, 6, 7, 8)
    assert tree.shape(names) == [[-1, 5], [6], [7, 8]]
    assert [entry[:2] for entry in tree.log] == [
        (STORED, (5,)),
        (STORED, (6,)),
        (STORED, (7, 8)),
    ]
    tree.publish(names, 0, 4)
    assert tree.found(names) == [4, 5, 6, 7, 8]
    assert [tree.trie.key(block) for block in (4, 5, 6, 7, 8)] == list(tree.trie.chains(names))


def test_what_is_published_ends_within_a_run() -> None:
    tree = Tree()
    names = tree.text("ABCDE")
    tree.text("ABCX")
    tree.publish(names, 1, 5, 6, 7)
    assert tree.shape(names) == [[-1, 5, 6], [7, -1]]


def test_a_copy_stands_behind_the_first_and_a_gap_is_filled() -> None:
    """Given a text of four blocks of which all but the third are there; when its last three are
    published together, then two are copies, and one is the first of its name."""
    tree = Tree()
    names = tree.text("ABCD")
    tree.publish(names, 0, 6, 1)
    tree.publish(names, 3, 3)
    tree.publish(names, 1, 7, 8, 9)
    assert tree.copies(names) == [(6,), (1, 7), (8,), (3, 9)]
    assert tree.found(names) == [6, 1, 8, 3]


# --- what is evicted -----------------------------------------------------------------------


def test_who_goes_leaves_the_other_copies_in_their_order() -> None:
    """Given three copies of one block, two of another and one of a third; when copies go, the
    oldest, the one in the middle, or the only one, then those that stay are found."""
    tree = Tree()
    names = tree.text("ABC")
    tree.publish(names, 0, 0, 1, 2)
    tree.publish(names, 0, 3, 4)
    tree.publish(names, 0, 5)
    assert tree.copies(names) == [(0, 3, 5), (1, 4), (2,)]
    tree.evict(3)
    assert tree.copies(names) == [(0, 5), (1, 4), (2,)]
    tree.evict(2)
    assert tree.copies(names) == [(0, 5), (1, 4), ()]
    assert tree.shape(names) == [[0, 1, -1]]
    tree.evict(0)
    assert tree.copies(names) == [(5,), (1, 4), ()]
    tree.evict(4)
    (run,) = tree.path(names)
    assert (run.blocks, run.others) == ([5, 1, -1], None)
    assert tree.found(names) == [5, 1]


def test_a_table_that_is_evicted_from_its_end_goes_as_one() -> None:
    """Given a run of four blocks; when three are evicted, last block first, then that is one entry
    of the log; in another order, each is one."""
    tree = Tree()
    names = tree.text("ABCD")
    tree.publish(names, 0, 0, 1, 2, 3)
    tree.evict(3, 2, 1)
    tree.evict(0)
    gone = [entry[1] for entry in tree.log if entry[0] is REMOVED]
    assert gone == [[3, 2, 1], [0]]
    tree.publish(names, 0, 4, 5, 6)
    tree.evict(4, 5, 6)
    assert [entry[1] for entry in tree.log if entry[0] is REMOVED][2:] == [[4], [5], [6]]
    assert tree.shape(names) == [[-1, -1, -1, -1]]
    assert tree.trie.index() == {}


def kept(*evicted: int) -> list[int]:
    """Of the five blocks of a text that is gone: what its run still has after these were evicted,
    one at a time."""
    tree = Tree()
    names = tree.text("ABCDE")
    tree.publish(names, 0, *range(5))
    tree.trie.drop(names)
    for block in evicted:
        tree.evict(block)
    root = tree.trie.roots.get(PUBLIC)
    return [] if root is None else root.children[key("A")].blocks


def test_places_at_the_end_are_forgotten_when_they_are_half_of_the_run() -> None:
    """Or when the gap before them has come to be one with them: then nothing is gained by waiting.
    A gap is kept, for the name behind it."""
    assert kept(4) == [0, 1, 2, 3, -1]
    assert kept(4, 3) == [0, 1, 2, -1, -1]
    assert kept(4, 3, 2) == [0, 1]
    assert kept(4, 3, 2, 1) == [0, -1]
    assert kept(4, 3, 2, 1, 0) == []
    assert kept(2) == [0, 1, -1, 3, 4]
    assert kept(3, 4) == [0, 1, 2]
    assert kept(0, 1) == [-1, -1, 2, 3, 4]


def test_a_place_of_an_even_run_is_kept_up_to_its_half() -> None:
    """Given four blocks, of which the first is block 0; then two evicted ones keep their places,
    and a third one does not, unless somebody's text goes that way."""
    for needed in (False, True):
        tree = Tree()
        names = tree.text("ABCD")
        tree.publish(names, 0, 1, 0, 2, 3)
        (run,) = tree.path(names)
        if not needed:
            tree.trie.drop(names)
        tree.evict(3, 2)
        assert run.blocks == [1, 0, -1, -1]
        tree.evict(0)
        assert run.blocks == ([1, -1, -1, -1] if needed else [1])


def test_tokens_are_forgotten_with_their_places() -> None:
    """Given a text of four blocks, let go; when two are left, then its tokens are still there, half
    of them for nothing; when one is left, they are its own."""
    tree = Tree()
    names = tree.text("ABCD")
    tree.publish(names, 0, 0, 1)
    (run,) = tree.path(names)
    tree.trie.drop(names)
    assert (run.blocks, run.text.tokens) == ([0, 1], tokens("ABCD"))
    tree.evict(1)
    assert run.blocks == [0, -1]
    assert tree.shape(tree.text("AX")) == [[0], [-1]]
    assert run.text.tokens == tokens("A")


def test_tokens_of_a_run_that_was_parted_are_forgotten_too() -> None:
    """Given a run that begins at its text's third block, and goes on for three more; when only the
    first of them is left, then the text is kept up to that."""
    tree = Tree()
    long, short = tree.text("ABCDEFGHI"), tree.text("ABX")
    tree.publish(long, 0, 0, 1, 2)
    run = tree.path(long)[1]
    assert (run.start, run.stop) == (2, 9)
    tree.trie.drop(long)
    assert (run.blocks, run.text.tokens) == ([2], tokens("ABC"))
    assert tree.found(tree.text("ABCX")) == [0, 1, 2]
    assert tree.found(short) == [0, 1]
