"""Live requests of the fast engine, and its plans.

Theory of operation. A request's text is a list that grows, its table a list that grows, its names
the way of its full blocks in the tree of texts. A plan is a list of tuples, one for each scheduled
request, in order of scheduling; what becomes of a request while its plan is in flight is noted in
the plan.
"""

from __future__ import annotations

from typing import NamedTuple

from servecheck.engines.fast.trie import Names
from servespec.actions import Submit
from servespec.chain import Namespace, Tokens


class FastRequest:
    """A live request."""

    __slots__ = (
        "arrival",
        "computed",
        "drafts",
        "edge",
        "id",
        "limit",
        "max_tokens",
        "names",
        "namespace",
        "prefilling",
        "priority",
        "prompt",
        "published",
        "steady",
        "stop",
        "table",
        "text",
    )

    def __init__(self, submit: Submit, arrival: int, max_model_len: int) -> None:
        self.id = submit.id
        self.namespace: Namespace = submit.namespace
        self.prompt = len(submit.prompt)
        self.text = list(submit.prompt)
        self.max_tokens = submit.max_tokens
        self.limit = min(max_model_len, self.prompt + self.max_tokens)
        """Length of the text at which it ends, if no token ends it before."""
        self.priority = submit.priority
        self.stop = submit.stop
        self.arrival = arrival
        """Moment of arrival: only the order of moments means something."""
        self.names = Names()
        self.table: list[int] = []
        self.computed = 0
        self.published = 0
        self.drafts: Tokens = ()
        self.prefilling = True
        # What is known about the steps to come, so that most of them need only be counted.
        self.steady = 0
        """While C is below, one token more needs no block, publishes none, and is allowed."""
        self.edge = 0
        """While C is below, a token more fills no block of the text and does not end it."""


class FastPlanned(NamedTuple):
    """What the worker gets for one request."""

    request: FastRequest
    start: int
    stop: int
    drafts: Tokens
    blocks: int
    """Blocks of the table at the time of the plan: later ones are not this plan's."""
    new_blocks: int
    yields: bool
    admitted: bool
    was_prefilling: bool

    @property
    def tokens(self) -> Tokens:
        """What the forward pass is fed: text, then drafts."""
        text = self.request.text[self.start : self.stop - len(self.drafts)]
        return tuple(text) + self.drafts


class FastPlan:
    """Entries in order of scheduling, and what has become of their requests since."""

    __slots__ = ("deferred", "entries", "gone")

    def __init__(self) -> None:
        self.entries: list[FastPlanned] = []
        self.deferred: list[list[int]] = []
        self.gone: dict[FastRequest, list[int]] = {}
        """Requests that have left, or were sent back: their output is ignored. With the table
        that the step still writes through."""

    def live(self, entry: FastPlanned) -> bool:
        """The entry's request is still there, and takes its output."""
        return entry.request not in self.gone
