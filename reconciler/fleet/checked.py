"""What came of checking one signature."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """Good at two times; without a reason only where it is good at both."""

    at_commit: bool = False
    """The signature is good, and its key was valid when the commit was made."""
    now: bool = False
    """The signature is good, and its key is valid now."""
    key: str = ""
    """Which key, for people; empty: it cannot be told."""
    who: str = ""
    """Whose, as the list of keys says; empty: not known."""
    why: str = ""
    """What is wrong."""

    @property
    def words(self) -> str:
        """For people: what is wrong, with the key."""
        by = f"{self.who} ({self.key})" if self.who and self.key else self.who or self.key
        return f"{self.why}; signed by {by}" if by else self.why
