"""What looks like a secret, and how it is kept out of what we print.

Shared by validation, which refuses secrets in git, and by every message that repeats a value.
"""

from __future__ import annotations

import re

SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|SECRET_?KEY"
    r"|PRIVATE_?KEY|AUTH_?KEY)(_ID)?$",
    re.IGNORECASE,
).search

_SHAPES_RE = re.compile(
    # Prefixes that the issuers themselves publish for secret scanners.
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(AKIA|ASIA)[0-9A-Z]{16}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|nvapi-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----|[a-z]{2,10}://[^/@:\s]{1,64}:[^/@\s]{1,128}@",
)
_SHAPES = _SHAPES_RE.search

PLACEHOLDERS = frozenset({"EMPTY", "empty", "none", "dummy", "unused", "not-needed"})
"""What people write where a client demands some key and the server checks none."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's value is one that must not be shown."""
    if value in PLACEHOLDERS or "$(" in value:
        return False
    return bool(SECRET_NAME(name)) or has_secret_shape(value)


def has_secret_shape(value: str) -> bool:
    """Whether text holds something in the shape of a known kind of secret."""
    return _SHAPES(value) is not None


def without_secrets(text: str) -> str:
    """`text` with everything in the shape of a secret cut out."""
    return _SHAPES_RE.sub("…", text)
