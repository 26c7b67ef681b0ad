"""What looks like a secret: the one answer for whoever refuses one in git and whoever shows text.

Two questions with different costs. *Refusing* a harmless value stops a revision, so `looks_secret`
asks for a name that can mean nothing else, or for the shape of an issuer's tokens. *Masking* a
harmless value costs a look at the repo, and showing a secret costs a rotation, so `sensitive` takes
in more names. Whatever is refused by its name is masked too.
"""

from __future__ import annotations

import re

MASK = "(sensitive)"

_REFUSED_NAME = re.compile(
    r"(^|_)(TOKEN|(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|SECRET_?KEY"
    r"|PRIVATE_?KEY|AUTH_?KEY)(_ID)?)$",
    re.IGNORECASE,
)

_MASKED_NAME = re.compile(
    r"(api[-_]?key|token(?!i|s\b|_?id)|secret|passw(or)?d|credential|private[-_]?key|authorization)",
    re.IGNORECASE,
)
"""`tokenizer`, `max-tokens` and `pad_token_id` are not among them."""

_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{20,}"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----|(?<=://)[^/@:\s]{1,64}:[^/@\s]{1,128}(?=@)"
)
"""Prefixes that issuers publish for secret scanners, and passwords in URLs: no name tells of one in
a log line or a rendered file."""

PLACEHOLDERS = frozenset({"EMPTY", "empty", "none", "dummy", "unused", "not-needed"})
"""What people write where a client demands some key and the server checks none."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's value is one that must not be in git."""
    if value in PLACEHOLDERS or "$(" in value:
        return False
    return bool(_REFUSED_NAME.search(name)) or has_secret_shape(value)


def sensitive(name: str) -> bool:
    """Whether what a field, variable or flag of this name holds must not be shown."""
    return bool(_MASKED_NAME.search(name) or _REFUSED_NAME.search(name))


def has_secret_shape(value: str) -> bool:
    """Whether text holds something in the shape of a known kind of secret."""
    return _SHAPES.search(value) is not None


def without_secrets(text: str, instead: str = MASK) -> str:
    """`text` with everything in the shape of a secret replaced."""
    return _SHAPES.sub(instead, text)
