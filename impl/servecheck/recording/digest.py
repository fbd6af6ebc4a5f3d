"""The hash by which vLLM 0.33.0 names the content of a block (rule 2), computed from a `Chain`.

The specification compares contents by identity and never needs a hash; a recording has nothing
else. So this is the one bridge between the two: sha256 over the canonical CBOR of [digest of the
parent, [tokens], extra], where the parent of a first block is a fixed root. Only the first link
of a salted request carries the salt, in `extra`; the chain carries it on. The digest of a link is
thus a function of the same triple that `servespec.chain` interns, and is kept beside the link for
as long as the link lives (weakly: a memo must not keep a finished request's text alive).

The root is that of an engine started without PYTHONHASHSEED; with it, *all* hashes differ.

No recording shows how the engine hashes under an adapter. A trace must name such a block as well,
and compares its names with nobody's: `content_name` gives it a hash of our own there.
"""

from __future__ import annotations

from hashlib import sha256
from weakref import WeakKeyDictionary

import cbor2

from servespec.chain import Chain, Namespace

ROOT = sha256(cbor2.dumps("vllm-none-hash", canonical=True)).digest()
"""Stands for the parent of a first block; 32 bytes."""

OWN_ROOT = sha256(cbor2.dumps("servecheck-none-hash", canonical=True)).digest()
"""Stands for it under a namespace whose hash no recording shows, so that no name of ours can be
one of the engine's."""

_KNOWN: WeakKeyDictionary[Chain, bytes] = WeakKeyDictionary()


def digest(chain: Chain) -> bytes:
    """Rule 2: the 32 bytes that name `chain`. O(1) amortised for each link, and no recursion.

    Raises ValueError for a namespace whose hash no recording shows: one with an adapter, or with
    an empty salt (the engine takes it for none, the specification does not). Guessing would let
    two tenants share a hash.
    """
    if not _recorded(chain.namespace):
        raise ValueError(
            f"no recording shows how vLLM 0.33.0 hashes a block under {chain.namespace}; "
            "use a namespace without an adapter, whose salt is None or not empty"
        )
    return _along(chain)


def _recorded(namespace: Namespace) -> bool:
    return namespace.adapter is None and namespace.salt != ""


def _first(namespace: Namespace) -> tuple[bytes, list[list[str | None]] | None]:
    """What stands before a first block, and what besides its tokens goes into its digest."""
    if not _recorded(namespace):
        return OWN_ROOT, [["namespace", namespace.adapter, namespace.salt]]
    return ROOT, None if namespace.salt is None else [["cache_salt", namespace.salt]]


def _along(chain: Chain) -> bytes:
    """The digest of `chain`, after those of its ancestors that are not known yet."""
    found, unknown = ROOT, list[Chain]()
    for link in chain.path():
        known = _KNOWN.get(link)
        if known is not None:
            found = known
            break
        unknown.append(link)
    for link in reversed(unknown):
        extra = None
        if link.parent is None:
            found, extra = _first(link.namespace)
        found = sha256(cbor2.dumps([found, link.tokens, extra], canonical=True)).digest()
        _KNOWN[link] = found
    return found


def hex_hash(chain: Chain) -> str:
    """The whole digest as 64 hex digits: how a run with byte hashes shows it."""
    return digest(chain).hex()


def content_name(chain: Chain) -> str:
    """64 hex digits that no other (adapter, salt, tokens) has: `hex_hash`, where there is one."""
    return _along(chain).hex()


def event_hash(chain: Chain) -> int:
    """The low 64 bits of the digest, 0 to 2**64 - 1: how an event names the block."""
    return int.from_bytes(digest(chain)[-8:], "big")


def short_hash(chain: Chain) -> str:
    """The low 32 bits of the digest as 8 hex digits: how a state line names the block."""
    return digest(chain)[-4:].hex()
