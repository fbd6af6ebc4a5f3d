"""Number formats of weights and caches: bytes an element, block overheads included.

Theory of operation. A format stores `elements` numbers in `size` bytes. For the plain formats a
block is one number; those of llama.cpp put 32 numbers into a block with a scale of its own, so a
number of q4_0 costs 4.5 bits and not 4. Sizes are exact; what they come to is a Fraction.
"""

from __future__ import annotations

from fractions import Fraction

from attrs import frozen

from servespec.errors import ConfigError
from servespec.theory.catalogue import found


@frozen
class Dtype:
    name: str
    elements: int
    """Numbers in a block."""
    size: int
    """Bytes of a block."""
    source: str

    @property
    def bytes(self) -> Fraction:
        """Bytes of one number."""
        return Fraction(self.size, self.elements)

    def row(self, length: int, what: str) -> Fraction:
        """Bytes of a row of numbers, which blocks must fill.

        Raises:
            ConfigError: they do not.
        """
        if length % self.elements:
            raise ConfigError(
                what,
                f"{length} numbers do not fill blocks of {self.elements} ({self.name})",
                "choose another dtype",
            )
        return length * self.bytes


_PLAIN = "width of the format"
_GGML = "llama.cpp, ggml/src/ggml-common.h (the structs block_*)"

DTYPES = {
    d.name: d
    for d in (
        Dtype("f32", 1, 4, _PLAIN),
        Dtype("bf16", 1, 2, _PLAIN),
        Dtype("f16", 1, 2, _PLAIN),
        Dtype("fp8", 1, 1, f"{_PLAIN}; scales a tensor, as in vLLM, are not counted"),
        Dtype("int8", 1, 1, f"{_PLAIN}; scales are not counted"),
        Dtype("int4", 2, 1, f"{_PLAIN}; scales are not counted"),
        Dtype("q8_0", 32, 34, f"{_GGML}: a scale of 2 bytes, 32 of 8 bits"),
        Dtype("q5_1", 32, 24, f"{_GGML}: a scale and a minimum of 2 bytes each, 32 of 5 bits"),
        Dtype("q5_0", 32, 22, f"{_GGML}: a scale of 2 bytes, 32 of 5 bits"),
        Dtype("q4_1", 32, 20, f"{_GGML}: a scale and a minimum of 2 bytes each, 32 of 4 bits"),
        Dtype("iq4_nl", 32, 18, f"{_GGML}: a scale of 2 bytes, 32 of 4 bits"),
        Dtype("q4_0", 32, 18, f"{_GGML}: a scale of 2 bytes, 32 of 4 bits"),
    )
}
"""By name. A cache of llama.cpp may have any of f32, f16, bf16 and the q-formats (`-ctk`, `-ctv` of
its server)."""


def dtype(name: str) -> Dtype:
    """The format of this name.

    Raises:
        ConfigError: there is none; the nearest names are offered.
    """
    return found("dtype", name, DTYPES)
