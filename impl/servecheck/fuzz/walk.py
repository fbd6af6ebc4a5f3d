"""A walk: one machine under way, and every property asked after each step.

Theory of operation. A `Walk` holds a machine, its state, and what the run has shown so far. Moves
(`servecheck.fuzz.moves`) drive it by its verbs: `submit`, `schedule`, `complete`, and `do` for any
other action. What they refer to, such as the text of somebody who was here, is remembered here.

    move(walk, chance) ──▶ Walk.do(action) ──▶ Machine.apply ──▶ Watch.see ──▶ marks_of

To complete a step somebody must say what the model answers. `Walk.model` is a function of the
whole text, so equal texts go on equally, and who comes back with the answer hits the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from attrs import define, evolve, field, frozen

from servecheck.fuzz.draw import Chance, digits
from servecheck.fuzz.names import Naming, letters
from servecheck.fuzz.tell import fell
from servecheck.lockstep.follow import Diverged, Follower
from servecheck.marks import Mark, marks_of
from servecheck.trace.shrink import adapted
from servecheck.watch import Watch
from servespec.actions import Submit
from servespec.chain import Namespace, Token, Tokens
from servespec.config import Config, usable_blocks
from servespec.errors import ActionDisabled
from servespec.events import Delivered, Event, Finished
from servespec.machine import (
    Abort,
    Action,
    Complete,
    Machine,
    Output,
    Schedule,
    acceptable,
    fits_alone,
)
from servespec.plan import Planned, State
from servespec.policy import Order, Policy, Victim
from servespec.properties import PROPERTIES, Property, Step, step_of
from servespec.request import Request

REMEMBERED = 6
"""Ended requests whose texts may come back."""
LONGEST_OUTPUT = 8
URGENCIES = 3
"""Priorities that there are."""

CARRIED_OUT = "Every action that the walk holds to be enabled is carried out, and told in full."
FOLLOWED = "An engine that follows shows, after every action, what the specification says."
REFUSED = "An action that the state does not offer is refused."


@frozen
class Text:
    """What somebody had read and written when it was last seen."""

    namespace: Namespace
    prompt: Tokens
    whole: Tokens


@define
class Walk:
    """A machine under way."""

    machine: Machine
    properties: Iterable[Property] = field(factory=lambda: tuple(PROPERTIES.values()))
    alphabet: int = 2
    """Tokens that there are."""
    follower: Follower | None = None
    """An engine that goes along, if there is one."""
    naming: Naming = letters
    state: State = field(init=False)
    watch: Watch = field(init=False)
    actions: list[Action] = field(init=False, factory=list)
    marks: Counter[Mark] = field(init=False, factory=Counter)
    first: dict[Mark, int] = field(init=False, factory=dict)
    """Actions after which a mark was first reached."""
    replaying: bool = field(init=False, default=False)
    known: Counter[str] = field(init=False, factory=Counter)
    """Falls that the registry knows, by property."""
    moves: Counter[str] = field(init=False, factory=Counter)
    ended: list[Text] = field(init=False, factory=list)
    adopted_at: int | None = field(init=False, default=None)
    """Action after which the engine's own state was last adopted."""
    free_ids: list[str] = field(init=False, factory=list)
    """Ids whose owners have left."""
    _ids: Iterable[int] = field(init=False, factory=count)
    _taken: set[str] = field(init=False, factory=set)
    """Ids on the way that was replayed."""

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()
        self.watch = Watch(self.machine, self.state, self.properties)

    @property
    def config(self) -> Config:
        return self.machine.config

    @property
    def policy(self) -> Policy:
        return self.machine.policy

    @property
    def busy(self) -> bool:
        """A step is in flight, and no other can be made."""
        return len(self.state.in_flight) >= self.config.max_steps_in_flight

    # --- steps ---------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Carry out an action that is enabled, and ask every property.

        Raises:
            PropertyFell: one fell where it is not known to fall, or the engine does not follow.
                What the engine says that it cannot do is left out.
        """
        before = self.state
        if self.follower is not None and not self.follower.allows(self.machine, before, action):
            return
        self.actions.append(action)
        try:
            moved = self.machine.apply(before, action)
            fallen = self.watch.see(before, action, moved)
        except Exception as error:
            raise self.fall("APPLY-1", CARRIED_OUT, f"{type(error).__name__}: {error}") from error
        for fall in fallen:
            if not fall.known:
                raise self.fall(fall.property.id, fall.property.statement, fall.what)
            self.known[fall.property.id] += 1
        self.state = moved.state
        step = step_of(self.machine, before, action, moved)
        if not self.replaying:
            self._mark(step)
        if self.follower is not None:
            try:
                adopted = self.follower.follow(step)
            except Diverged as parted:
                raise self.fall("LOCKSTEP", FOLLOWED, str(parted)) from parted
            if adopted is not None:
                self.state, self.adopted_at = adopted, len(self.actions)
                self.watch.restart(adopted)
        self._remember(before, moved.events)

    def replay(self, actions: Iterable[Action], counts: bool = False) -> None:
        """Go the way of an earlier walk, as far as the engine goes along. Where that was in this
        world, the situations on it are not counted again.

        Raises:
            PropertyFell: as `do` does.
        """
        self.replaying = not counts
        actions = tuple(actions)
        self.leave_ids_to(actions)
        for action in actions:
            follower = self.follower
            if follower is not None and not follower.allows(self.machine, self.state, action):
                break
            self.do(action)
        self.replaying = False

    def leave_ids_to(self, actions: Iterable[Action]) -> None:
        """Give nobody else the ids of those who come in these actions."""
        self._taken.update(action.id for action in actions if isinstance(action, Submit))

    def along(self, actions: Iterable[Action]) -> None:
        """Go on as another walk did, as far as that is enabled here; what a step brings is adapted
        to its plan.

        Raises:
            PropertyFell: as `do` does.
        """
        for action in actions:
            mine = action
            if isinstance(action, Complete):
                mine = adapted(self.machine, self.state, action)
            if self._offers(mine):
                self.do(mine)

    def _offers(self, action: Action) -> bool:
        """Whether an action is enabled; what else goes wrong with it is for `do` to tell."""
        try:
            self.machine.apply(self.state, action)
        except ActionDisabled:
            return False
        except Exception:
            return True
        return True

    def _mark(self, step: Step) -> None:
        for mark in marks_of(step):
            self.marks[mark] += 1
            self.first.setdefault(mark, len(self.actions))

    def refuses(self, action: Action) -> None:
        """Try an action that is not enabled."""
        try:
            self.machine.apply(self.state, action)
        except ActionDisabled:
            return
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        else:
            what = "it was carried out"
        self.actions.append(action)
        raise self.fall("APPLY-2", REFUSED, what)

    def fall(self, property_id: str, statement: str, what: str) -> AssertionError:
        """The report of a fall at the last action."""
        actions = tuple(self.actions)
        if self.adopted_at is not None and property_id != "LOCKSTEP":
            what += f" (after action {self.adopted_at} the engine's own state was adopted)"
        return fell(property_id)(property_id, statement, what, self.config, self.policy, actions)

    def _remember(self, before: State, events: tuple[Event, ...]) -> None:
        """Keep the texts and the ids of those who left."""
        told = {e.id: e.tokens for e in events if isinstance(e, Delivered)}
        for event in events:
            request = before.find(event.id) if isinstance(event, Finished) else None
            if request is None:
                continue
            whole = request.prompt + request.output + told.get(request.id, ())
            text = Text(request.namespace, request.prompt, whole)
            self.ended = [*self.ended[1 - REMEMBERED :], text]
            self.free_ids = [*self.free_ids[1 - REMEMBERED :], request.id]

    # --- what there is to refer to -------------------------------------------------------

    @property
    def texts(self) -> tuple[Text, ...]:
        """Texts of those who are here, then of those who were, the latest first."""
        live = (Text(r.namespace, r.prompt, r.prompt + r.output) for r in self.state.live)
        return (*live, *reversed(self.ended))

    def new_id(self) -> str:
        """An id that nobody had."""
        return next(name for name in map(self.naming, self._ids) if name not in self._taken)

    @property
    def longest(self) -> int:
        """Most tokens of a prompt that can be served."""
        slots = usable_blocks(self.config, self.policy) * self.config.block_size
        whole = min(self.config.max_model_len - 1, slots)
        return whole if self.policy.chunked_prefill else min(whole, self.budget)

    @property
    def by_priority(self) -> bool:
        """Policy asks who is more urgent."""
        policy = self.machine.policy
        return policy.order is Order.PRIORITY or policy.victim is Victim.WORST_PRIORITY

    @property
    def budget(self) -> int:
        return self.config.max_num_batched_tokens

    def tokens(self, chance: Chance, length: int) -> Tokens:
        return digits(chance, self.alphabet, length)

    # --- what moves are made of ----------------------------------------------------------

    def submit(
        self, chance: Chance, prompt: Tokens, as_is: Submit | None = None, wanted: int = 0
    ) -> None:
        """Submit a prompt, cut so that it can be served; `as_is` says how the request differs
        from a plain one, `wanted` how much it wants at most. Where policy asks for priorities,
        everybody has one."""
        prompt = prompt[: max(self.longest, 1)]
        plain = as_is or Submit("", prompt, 1)
        if self.by_priority and not plain.priority:
            plain = evolve(plain, priority=chance.below(URGENCIES))
        wanted = wanted or 1 + chance.below(LONGEST_OUTPUT)
        request = evolve(plain, id=plain.id or self.new_id(), prompt=prompt, max_tokens=wanted)
        while request.max_tokens > 1 and not fits_alone(self.machine, request):
            request = evolve(request, max_tokens=request.max_tokens - 1)
        self.do(request)

    def schedule(self) -> None:
        """Make a plan, unless as many as may be are in flight."""
        if not self.busy:
            self.do(Schedule())

    def complete(self, answer: Callable[[Planned, Request], Output]) -> None:
        """Let the oldest plan run; if there is none, make one first."""
        if not self.state.in_flight:
            self.do(Schedule())
        outputs = []
        for entry in self.state.in_flight[0].entries:
            request = None if entry.cancelled else self.state.find(entry.id)
            if request is not None and entry.yields:
                outputs.append(answer(entry, request))
        self.do(Complete(tuple(outputs)))

    def abort(self, request_id: str) -> None:
        """Take somebody out."""
        self.do(Abort(request_id))

    def answer(self, entry: Planned, request: Request, most: int, right: int) -> Output:
        """What the model says: it accepts `most` drafts at most, as long as they are its own, and
        of the next drafts the first `right` will be its own."""
        text = request.prompt + request.output
        tokens: Tokens = ()
        for draft in entry.drafts[: min(acceptable(entry), most)]:
            if draft != self.model(text + tokens):
                break
            tokens += (draft,)
        tokens += (self.model(text + tokens),)
        ahead: Tokens = ()
        for at in range(self.config.num_speculative_tokens):
            ahead += ((self.model(text + tokens + ahead) + (at >= right)) % self.alphabet,)
        return Output(entry.id, tokens, ahead)

    def model(self, text: Tokens) -> Token:
        """The next token: a function of the whole text."""
        value = 7
        for token in text:
            value = (value * 5 + token + 1) % 1009
        return value % self.alphabet
