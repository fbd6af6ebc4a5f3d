"""Request: one text on its way through the loop.

A request waits, runs, perhaps is preempted and waits again, and leaves; where it stands is
which queue of the state holds it, so no status is kept. Its *text* is its prompt and its output
so far, T tokens long; the first C of them are *computed*: their KV is in the blocks of its
*table*. While it waits, C is 0 and the table is empty (rule 4).

    waiting ──admitted──▶ running ──stop, length, abort──▶ gone
       ▲                     │
       └─────preempted───────┘

Who a request is, is where it stands in the state, not its id: an id may be used again as soon
as its owner has left.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servespec import policy as choose
from servespec.actions import Submit
from servespec.chain import Chain, Namespace, Tokens, extend_keys
from servespec.config import Config
from servespec.policy import Policy
from servespec.rules import rule


@frozen
class Request:
    id: str
    namespace: Namespace
    prompt: Tokens
    max_tokens: int
    priority: int
    stop: Tokens
    arrival: int
    """Rank among the live requests; equal for those that arrived together."""
    keys: tuple[Chain, ...]
    """Identities of the full blocks of the text; none where sharing is off (rule 2)."""
    output: Tokens = ()
    computed: int = 0
    """C, tokens whose KV is, or by the steps in flight will be, in the table."""
    table: tuple[int, ...] = ()
    published: int = 0
    """Blocks of the table that have got their key."""
    drafts: Tokens = ()
    """Proposed for the next pass (rule 32)."""
    prefilling: bool = True
    """Its last pass, if any, was a prefill chunk and yielded no token (rule 28)."""

    @property
    def length(self) -> int:
        """T, tokens of prompt and output."""
        return len(self.prompt) + len(self.output)

    def text(self, start: int, stop: int) -> Tokens:
        """Tokens start … stop-1 of prompt and output."""
        shift = len(self.prompt)
        output = self.output[max(start - shift, 0) : max(stop - shift, 0)]
        return self.prompt[start:stop] + output

    @property
    def waits(self) -> Request:
        """This request as it waits after a preemption: rules 4, 21, 37."""
        return evolve(self, computed=0, table=(), published=0, drafts=(), prefilling=True)


@rule("2", engine="Request.__init__, Request.append_output_token_ids")
def with_output(request: Request, tokens: Tokens, config: Config, policy: Policy) -> Request:
    """The identity of a full block is the triple (namespace, parent's identity, tokens); a
    request knows those of its text as soon as the tokens are known. Where nothing is shared
    there are none."""
    longer = evolve(request, output=request.output + tokens)
    if not choose.shares(policy):
        return longer
    size, known = config.block_size, longer.keys
    if longer.length < (len(known) + 1) * size:
        return longer
    whole = longer.prompt + longer.output
    return evolve(longer, keys=extend_keys(known, longer.namespace, whole, size))


def arrived(submit: Submit, arrival: int, config: Config, policy: Policy) -> Request:
    """The request as it begins to wait."""
    bare = Request(
        submit.id,
        submit.namespace,
        submit.prompt,
        submit.max_tokens,
        submit.priority,
        submit.stop,
        arrival,
        keys=(),
    )
    return with_output(bare, (), config, policy)


def peak(config: Config, length: int, max_tokens: int) -> int:
    """Most token slots that a request with `length` tokens of prompt can come to use: its last
    token never owns one, its drafts and the look-ahead do."""
    ahead = config.num_speculative_tokens + config.num_lookahead_tokens
    return min(length + max_tokens - 1 + ahead, config.max_model_len)
