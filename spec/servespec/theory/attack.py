"""The attack on a shared prefix: reading another tenant's prompt out of hit counts.

Theory of operation. A victim's prompt is in the cache. The attacker guesses its first block, sends
the guess and one token more, and reads how many tokens of it were hits: a whole block more than
before says that the guess is right, and the next block can be guessed. So a prompt of n blocks over
an alphabet of a tokens takes at most n · a^bs requests, not a^(n · bs). A user sees hits as a
`cached_tokens` in the answer, or as a shorter time to the first token.

What the attacker leaves in the cache hits his own later guesses, so he must not guess a thing
twice; he reads a hit on a block that he never sent before. With namespaces he reads nothing: all
his guesses miss, whatever the victim has sent.
"""

from __future__ import annotations

from itertools import product

from attrs import define, field

from servespec.actions import Action, Schedule, Submit
from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.errors import ConfigError
from servespec.events import Admitted, Event
from servespec.machine import Machine
from servespec.plan import State
from servespec.theory.stream import always

NOTHING = 0
"""What the model answers; what it answers plays no part."""


@define
class Attack:
    """An engine that two tenants share, and what the second one learns."""

    machine: Machine
    alphabet: Tokens
    victim: Namespace = PUBLIC
    attacker: Namespace = PUBLIC
    actions: list[Action] = field(init=False, factory=list)
    """All that was done, in order."""
    read: Tokens = field(init=False, default=())
    """What the attacker takes for the beginning of the victim's prompt."""
    guesses: int = field(init=False, default=0)
    _state: State = field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.machine.config.block_size < 2:
            raise ConfigError(
                "block_size",
                "is 1: the token that a guess ends with would be a block, and hit the next guess",
                "set at least 2",
            )
        self._state = self.machine.initial()

    def serve(self, prompt: Tokens, output: int) -> None:
        """A step of the victim's request, which may have more to write."""
        self._serve(Submit("victim", prompt, output, self.victim))

    def guess(self) -> bool:
        """Try every next block; true if one was there."""
        size = self.machine.config.block_size
        for block in product(self.alphabet, repeat=size):
            self.guesses += 1
            # The last token is never a hit, so one more is sent.
            prompt = (*self.read, *block, self.alphabet[0])
            name = f"guess {self.guesses}"
            said = self._serve(Submit(name, prompt, 1, self.attacker))
            hits = next(e.hit_tokens for e in said if isinstance(e, Admitted))
            if hits == len(self.read) + size:
                self.read += block
                return True
        return False

    def _serve(self, submit: Submit) -> tuple[Event, ...]:
        """What its pass says."""
        self._do(submit)
        said = self._do(Schedule())
        self._do(always(NOTHING)(self.machine, self._state))
        return said

    def _do(self, action: Action) -> tuple[Event, ...]:
        self.actions.append(action)
        moved = self.machine.apply(self._state, action)
        self._state = moved.state
        return moved.events


def attacked(
    machine: Machine,
    prompt: Tokens,
    alphabet: Tokens,
    victim: Namespace = PUBLIC,
    attacker: Namespace = PUBLIC,
    output: int = 1,
) -> Attack:
    """The victim is served; then the attacker guesses block by block, until nothing is found.

    Raises:
        ConfigError: blocks have one token.
    """
    attack = Attack(machine, alphabet, victim, attacker)
    attack.serve(prompt, output)
    while attack.guess():
        pass
    return attack
