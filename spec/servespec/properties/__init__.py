"""Every property of the specification, by its number: `PROPERTIES`."""

from servespec.properties import history, reports, states, transitions
from servespec.properties.base import (
    HELD,
    REGISTRY,
    VACUOUS,
    Fall,
    Falls,
    Kind,
    Monitor,
    Outcome,
    Property,
    Step,
    step_of,
)

PROPERTIES: dict[str, Property] = dict(REGISTRY)

__all__ = [
    "HELD",
    "PROPERTIES",
    "VACUOUS",
    "Fall",
    "Falls",
    "Kind",
    "Monitor",
    "Outcome",
    "Property",
    "Step",
    "history",
    "reports",
    "states",
    "step_of",
    "transitions",
]
