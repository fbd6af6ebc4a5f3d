"""The tables of Leviathan et al. 2023 (arXiv 2211.17192, version 2), as they are printed.

Numbers stay texts: how many digits are printed says what is known of them. Table 1 follows from its
α and γ, to the last digit, rounded to the nearest. Table 4 has α and c to two digits only, so its
expected speed-ups need not follow to the last digit, and in three of twelve rows do not: there
`EXPECTED` must be *possible* for numbers printed so (`speculation.speedup_within`).
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Gain:
    """A row of Table 1, at c = ĉ = 0."""

    alpha: str
    gamma: int
    operations: str
    speed: str


TABLE_1 = (
    Gain("0.6", 2, "1.53", "1.96"),
    Gain("0.7", 3, "1.58", "2.53"),
    Gain("0.8", 2, "1.23", "2.44"),
    Gain("0.8", 5, "1.63", "3.69"),
    Gain("0.9", 2, "1.11", "2.71"),
    Gain("0.9", 10, "1.60", "6.86"),
)


@frozen
class Measured:
    """A row of Table 4 (appendix A.3): T5-XXL, 11 B parameters, on one TPU-v4, batch size 1."""

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: str
    cost: str
    expected: str
    """Speed-up by Theorem 3.8."""
    empirical: str
    """Speed-up as measured."""


TABLE_4 = (
    Measured("EnDe", "T5-small", 0, 7, "0.75", "0.02", "3.2", "3.4"),
    Measured("EnDe", "T5-base", 0, 7, "0.80", "0.04", "3.3", "2.8"),
    Measured("EnDe", "T5-large", 0, 7, "0.82", "0.11", "2.5", "1.7"),
    Measured("EnDe", "T5-small", 1, 7, "0.62", "0.02", "2.3", "2.6"),
    Measured("EnDe", "T5-base", 1, 5, "0.68", "0.04", "2.4", "2.4"),
    Measured("EnDe", "T5-large", 1, 3, "0.71", "0.11", "2.0", "1.4"),
    Measured("CNNDM", "T5-small", 0, 5, "0.65", "0.02", "2.4", "3.1"),
    Measured("CNNDM", "T5-base", 0, 5, "0.73", "0.04", "2.6", "3.0"),
    Measured("CNNDM", "T5-large", 0, 3, "0.74", "0.11", "2.0", "2.2"),
    Measured("CNNDM", "T5-small", 1, 5, "0.53", "0.02", "1.9", "2.3"),
    Measured("CNNDM", "T5-base", 1, 3, "0.55", "0.04", "1.8", "2.2"),
    Measured("CNNDM", "T5-large", 1, 3, "0.56", "0.11", "1.6", "1.7"),
)
