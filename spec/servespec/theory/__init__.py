"""Theory: what can be proved, or computed exactly, about serving, beyond single transitions.

A property of `servespec.properties` is asked of a state, a transition or a history, and so of any
run of any engine. A *theorem* is about more than one run, or about no run at all: an order between
two runs (O), a relation between runs that must look alike (H), exact arithmetic (X). Each is one
function, marked with its number by `register.theorem`: it states the theorem, in its docstring, and
computes one side of it, or checks one case. The tests go through the cases.

Nothing of the specification imports from here.
"""

from servespec.theory.register import THEOREMS, Kind, Theorem, theorem

__all__ = ["THEOREMS", "Kind", "Theorem", "theorem"]
