"""What doctor says of signatures, of the environment that it is asked in."""

from __future__ import annotations

import pytest

from reconciler.cli.signing import Signing
from reconciler.fleet.checked import Checked

KEYS = {"RECONCILE_ALLOWED_SIGNERS": "/etc/signers"}
HEAD = "0123456789abcdef" + "0" * 24
GOOD = Checked(True, True, "SSH key SHA256:x", "ada@example.com")
ENDED = Checked(True, False, "SSH key SHA256:x", "ada@example.com", "its key has expired since")
BAD = Checked(why="it is not signed")


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            Signing({}, False, HEAD),
            "signatures: not asked for: whoever can push to the branch decides what runs;"
            " head 0123456789 carries none",
        ),
        (
            Signing({}, False, HEAD, "SSH"),
            "signatures: not asked for: whoever can push to the branch decides what runs;"
            " head 0123456789 carries one (SSH), unchecked",
        ),
        (
            Signing(KEYS, False, HEAD, "SSH", GOOD),
            "signatures: asked for by RECONCILE_ALLOWED_SIGNERS (/etc/signers);"
            " head 0123456789 is signed by ada@example.com",
        ),
        (
            Signing(KEYS, False, HEAD, "", BAD),
            "signatures: asked for by RECONCILE_ALLOWED_SIGNERS (/etc/signers);"
            " head 0123456789 has no good one",
        ),
        (
            Signing(KEYS, False, unread="repo .: no commit yet"),
            "signatures: asked for by RECONCILE_ALLOWED_SIGNERS (/etc/signers);"
            " head cannot be looked at: repo .: no commit yet",
        ),
    ],
)
def test_one_line_says_whether_signatures_are_asked_for_and_what_head_has(
    told: Signing, line: str
) -> None:
    assert told.line == line


def test_only_what_keeps_head_from_being_acted_on_is_a_finding() -> None:
    assert Signing({}, False, HEAD).findings == ()
    assert Signing(KEYS, True, HEAD, "SSH", GOOD).findings == ()
    assert Signing(KEYS, False, unread="no commit yet").findings == ()
    (unsigned,) = Signing(KEYS, False, HEAD, "", BAD).findings
    assert unsigned == (
        "head 0123456789: it is not signed; it is not acted on: sign a commit on top of it"
    )
    (ended,) = Signing(KEYS, False, HEAD, "SSH", ENDED).findings
    assert "stays in force where it is, and does not come into force" in ended
    (keyless,) = Signing({}, True, HEAD, "SSH").findings
    assert "no keys are given here" in keyless
