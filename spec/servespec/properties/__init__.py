"""Every property of the specification, by its number: `PROPERTIES`."""

from servespec.properties import (
    budget,
    content,
    history,
    passes,
    queues,
    reports,
    states,
    transitions,
)
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
    Renamable,
    Renaming,
    Step,
    step_of,
)

PROPERTIES: dict[str, Property] = {
    p.id: p for kind in Kind for p in REGISTRY.values() if p.kind is kind
}


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
    "Renamable",
    "Renaming",
    "Step",
    "budget",
    "content",
    "history",
    "passes",
    "queues",
    "reports",
    "states",
    "step_of",
    "transitions",
]
