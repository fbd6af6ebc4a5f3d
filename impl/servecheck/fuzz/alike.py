"""The same seed, the same search, whatever else is loaded.

Hypothesis also draws constants that it reads in whatever local modules are loaded, so that a run
would depend on who has loaded what, and change with a number in any of them. The names that it does
so by are its own: where a version has others, its searches are as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def alike() -> Iterator[None]:
    """Without constants of loaded modules."""
    try:
        from hypothesis.internal.conjecture import providers
        from hypothesis.internal.constants_ast import Constants

        kept, cache = providers._get_local_constants, providers.CONSTANTS_CACHE.cache
    except (ImportError, AttributeError):
        yield
        return
    nothing = Constants()
    cache.clear()
    providers._get_local_constants = lambda: nothing
    try:
        yield
    finally:
        providers._get_local_constants = kept
        cache.clear()
