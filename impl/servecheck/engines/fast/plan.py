"""Live requests of the fast engine, and its plans.

Theory of operation. A request's text is a list that grows, its table a list that grows, its names
the way of its full blocks in the tree of texts. A plan is a structure of arrays, so that a stretch
of decodes is added to it in one go; an entry of its own is written for who needs one, and for the
others when somebody asks. What becomes of a request while its plan is in flight is noted in it.
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
    """What is scheduled, as columns in order of scheduling, and what has become of it since."""

    __slots__ = ("deferred", "details", "gone", "requests", "yields")

    def __init__(self) -> None:
        self.requests: list[FastRequest] = []
        self.yields: list[bool] = []
        """Whether a token is sampled."""
        self.details: list[FastPlanned | None] = []
        """None: one token inside the last block, as the request itself says until the next pass."""
        self.deferred: list[list[int]] = []
        self.gone: dict[FastRequest, list[int]] = {}
        """Requests that have left, or were sent back: their output is ignored. With the table
        that the step still writes through."""

    def add(self, entry: FastPlanned) -> None:
        """Schedule one more request."""
        self.requests.append(entry.request)
        self.yields.append(entry.yields)
        self.details.append(entry)

    def add_decodes(self, requests: list[FastRequest]) -> None:
        """Schedule one token more of each, inside the last block, and nothing else to tell."""
        self.requests += requests
        self.yields += [True] * len(requests)
        self.details += [None] * len(requests)

    def remove(self, request: FastRequest) -> int:
        """Take a request out again: how many tokens it had, 0 if it is not in the plan."""
        if request not in self.requests:
            return 0
        at = self.requests.index(request)
        detail = self.details[at]
        del self.requests[at], self.yields[at], self.details[at]
        return 1 if detail is None else detail.stop - detail.start

    @property
    def entries(self) -> list[FastPlanned]:
        """All that is scheduled. To be read before the next pass: then the requests move on."""
        pairs = zip(self.requests, self.details, strict=True)
        return [_decode(request) if known is None else known for request, known in pairs]

    def settle(self) -> None:
        """Write out what the requests say so far: they will move on."""
        self.details[:] = self.entries

    def live(self, request: FastRequest) -> bool:
        """The request is still there, and takes its output."""
        return request not in self.gone

    def leave(self, request: FastRequest, table: list[int]) -> bool:
        """A request leaves, or is sent back, while this plan is in flight; whether it was in it."""
        if request in self.gone or request not in self.requests:
            return False
        self.settle()
        self.gone[request] = table
        return True


def _decode(request: FastRequest) -> FastPlanned:
    stop = request.computed
    return FastPlanned(request, stop - 1, stop, (), len(request.table), 0, True, False, False)
