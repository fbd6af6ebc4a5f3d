"""How a mutant is named, in rows and in lists."""

from __future__ import annotations

from attrs import frozen


@frozen
class Name:
    """Names a mutant, whatever moves around it."""

    module: str
    function: str
    """Qualified; the outermost one around the change."""
    before: str
    """The changed lines as they stand, each without its indentation, as one."""
    after: str
    again: int = 0
    """How many of the same name come earlier in the function."""

    def said(self) -> str:
        """For people."""
        number = f" ({self.again + 1})" if self.again else ""
        return f"{self.module}:{self.function}{number}\n  - {self.before}\n  + {self.after}"
