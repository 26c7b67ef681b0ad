"""What is refused in git is never shown, and what is harmless is neither refused nor masked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.secrets import MASK, has_secret_shape, looks_secret, sensitive, without_secrets

NAMES = [
    f"{before}{name}{after}"
    for name in ("TOKEN", "PASSPHRASE", "CREDENTIALS", "API_KEY", "ACCESS_KEY", "AUTHKEY", "passwd")
    for before in ("", "HF_", "aws_")
    for after in ("", "_ID")
    if (name, after) != ("TOKEN", "_ID")
]
SECRETS = [
    "hf_" + "a" * 24,
    "ghp_" + "A1" * 12,
    "github_pat_" + "x" * 22,
    "glpat-" + "x-" * 10,
    "AKIA" + "Z" * 16,
    "sk-" + "k" * 24,
    "xoxb-1234567890-x",
    "nvapi-" + "n" * 24,
    "-----BEGIN OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused_by_its_name_is_masked_by_it(name: str) -> None:
    assert looks_secret(name, "x1y2z3")
    assert sensitive(name)


@given(st.from_regex(r"[A-Za-z_]{1,12}(TOKEN|SECRET|KEY|PASSWORD|token|key)?[A-Za-z_]{0,4}"))
def test_whatever_name_is_refused_is_masked(name: str) -> None:
    if looks_secret(name, "x1y2z3"):
        assert sensitive(name)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_shape_is_refused_under_any_name_and_cut_out_of_any_text(secret: str) -> None:
    assert looks_secret("HARMLESS", f"--header={secret}")
    assert without_secrets(f"it said {secret}, and ended") == f"it said {MASK}, and ended"


def test_a_password_in_a_url_is_cut_out_and_the_host_stays() -> None:
    assert without_secrets("https://me:pw@host/x", "…") == "https://…@host/x"
    assert has_secret_shape("redis://:x@h") is False
    assert not has_secret_shape("http://10.0.0.1:8000/v1")


@pytest.mark.parametrize("name", ["tokenizer", "max-tokens", "pad_token_id", "MODEL", "KEYBOARD"])
def test_a_name_that_only_looks_near_is_neither(name: str) -> None:
    assert not sensitive(name)
    assert not looks_secret(name.replace("-", "_"), "x1y2z3")


def test_a_placeholder_or_a_reference_is_no_secret() -> None:
    assert not looks_secret("OPENAI_API_KEY", "EMPTY")
    assert not looks_secret("API_KEY", "$(launch.id)")
