"""The one error of this package, which somebody else can mend."""

from __future__ import annotations


class ViewError(ValueError):
    """What was asked to be shown, or written, cannot be: what is wrong, what to do."""
