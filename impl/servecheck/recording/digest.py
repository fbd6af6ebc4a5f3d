"""The hash by which vLLM 0.33.0 names the content of a block (rule 2), computed from a `Chain`.

The specification compares contents by identity and never needs a hash; a recording has nothing
else. So this is the one bridge between the two: sha256 over the canonical CBOR of [digest of the
parent, [tokens], extra], where the parent of a first block is a fixed root. Only the first link
of a salted request carries the salt, in `extra`; the chain carries it on. The digest of a link is
thus a function of the same triple that `servespec.chain` interns, and is kept beside the link for
as long as the link lives (weakly: a memo must not keep a finished request's text alive).

The root is that of an engine started without PYTHONHASHSEED; with it, *all* hashes differ.
"""

from __future__ import annotations

from hashlib import sha256
from weakref import WeakKeyDictionary

import cbor2

from servespec.chain import Chain

ROOT = sha256(cbor2.dumps("vllm-none-hash", canonical=True)).digest()
"""Stands for the parent of a first block; 32 bytes."""

_KNOWN: WeakKeyDictionary[Chain, bytes] = WeakKeyDictionary()


def digest(chain: Chain) -> bytes:
    """Rule 2: the 32 bytes that name `chain`. O(1) amortised for each link, and no recursion.

    Raises ValueError for a namespace whose hash no recording shows: one with an adapter, or with
    an empty salt (the engine takes it for none, the specification does not). Guessing would let
    two tenants share a hash.
    """
    namespace = chain.namespace
    if namespace.adapter is not None or namespace.salt == "":
        raise ValueError(
            f"no recording shows how vLLM 0.33.0 hashes a block under {namespace}; "
            "use a namespace without an adapter, whose salt is None or not empty"
        )
    unknown: list[Chain] = []
    found = ROOT
    for link in chain.path():
        known = _KNOWN.get(link)
        if known is not None:
            found = known
            break
        unknown.append(link)
    for link in reversed(unknown):
        salted = link.parent is None and namespace.salt is not None
        extra = [["cache_salt", namespace.salt]] if salted else None
        found = sha256(cbor2.dumps([found, link.tokens, extra], canonical=True)).digest()
        _KNOWN[link] = found
    return found


def hex_hash(chain: Chain) -> str:
    """The whole digest as 64 hex digits: how a run with byte hashes shows it."""
    return digest(chain).hex()


def event_hash(chain: Chain) -> int:
    """The low 64 bits of the digest, 0 to 2**64 - 1: how an event names the block."""
    return int.from_bytes(digest(chain)[-8:], "big")


def short_hash(chain: Chain) -> str:
    """The low 32 bits of the digest as 8 hex digits: how a state line names the block."""
    return digest(chain)[-4:].hex()
