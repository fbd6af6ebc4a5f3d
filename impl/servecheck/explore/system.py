"""What can be searched: a transition system of `initial`, `enabled`, `apply` and `canonical`.

Theory of operation. A search never keeps states, only their *canonical keys*: two states with one
key are the same up to a symmetry (the names of blocks, of requests, of tokens) or simply equal.
`restore` gives a state for a key, its *representative*; what is enabled there, up to the same
symmetry, is what is enabled in all states with that key. That this is so is the soundness of the
symmetry (EQV-1), a theorem about the system and not about the search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from attrs import frozen

S = TypeVar("S", bound=Hashable)
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)
S_co = TypeVar("S_co", covariant=True)


class Moved(Protocol[S_co]):
    """What `apply` gives: at least the state afterwards."""

    @property
    def state(self) -> S_co: ...


class Concrete(Protocol[S, A]):
    """A transition system over states `S` and actions `A`."""

    def initial(self) -> S: ...

    def enabled(self, state: S) -> Iterable[A]:
        """Every action that the state offers, in a fixed order."""
        ...

    def apply(self, state: S, action: A) -> Moved[S]:
        """One transition. The state that is given is not changed."""
        ...


class System(Concrete[S, A], Protocol[S, A, K]):
    """A transition system with canonical keys `K`."""

    def canonical(self, state: S) -> K:
        """The key of a state; equal for states that differ by a symmetry only."""
        ...

    def restore(self, key: K) -> S:
        """A state with this key: `canonical(restore(key)) == key`."""
        ...


@frozen
class Raw(Generic[S, A]):
    """A system without its symmetry: every state is its own key."""

    system: Concrete[S, A]

    def initial(self) -> S:
        return self.system.initial()

    def enabled(self, state: S) -> Iterable[A]:
        return self.system.enabled(state)

    def apply(self, state: S, action: A) -> Moved[S]:
        return self.system.apply(state, action)

    def canonical(self, state: S) -> S:
        return state

    def restore(self, key: S) -> S:
        return key
