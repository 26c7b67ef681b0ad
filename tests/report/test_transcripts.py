"""What people and scripts read, as golden files: a change of it is a decision, not an accident."""

from __future__ import annotations

import json

import pytest

from reconciler.core.changes import Change, Hold, Plan, Reason, Symbol
from reconciler.core.model import Revision
from reconciler.core.secrets import sensitive
from reconciler.report.clean import masked, masked_argv, printable, shortened
from reconciler.report.plan_json import plan_json
from reconciler.report.plan_markdown import LONGEST, plan_markdown
from reconciler.report.plan_text import plan_text
from tests.report.samples import GOLDEN, full_plan, transcripts


@pytest.mark.parametrize("name", sorted(transcripts()))
def test_output_equals_its_transcript(name: str) -> None:
    assert transcripts()[name] == (GOLDEN / name).read_text()


def test_no_secret_is_in_any_output() -> None:
    for name, text in transcripts().items():
        assert "canary-secret" not in text, name


def test_no_output_holds_a_terminal_escape() -> None:
    for name, text in transcripts().items():
        assert "\x1b" not in text, name


def test_plan_json_has_every_published_field() -> None:
    plan = json.loads(transcripts()["plan.json"])
    assert set(plan) >= {
        "format_version",
        "revision",
        "observed_at",
        "plan_digest",
        "summary",
        "changes",
        "holds",
        "guards",
        "capacity",
        "warnings",
    }
    published = {"address", "actions", "reason", "changed_paths", "before", "after", "sensitive"}
    for change in plan["changes"]:
        assert set(change) >= published | {"node", "gpus"}
    assert {g["verdict"] for g in plan["guards"]} == {"failed", "passed"}


def test_every_symbol_is_shown_at_the_start_of_its_line() -> None:
    shown = {
        line.split()[0]
        for line in plan_text(full_plan()).splitlines()
        if line[:3] == "  " + line[2:3]
    }
    assert {s.value for s in Symbol} <= shown


def test_a_plan_too_long_for_a_comment_is_cut_and_says_so() -> None:
    change = Change("llama-0", "llama", Symbol.START, "x" * 300)
    text = plan_markdown(Plan(Revision("a" * 40), changes=(change,) * 1000))
    assert len(text) <= LONGEST + 200
    assert "left out" in text


def test_markdown_text_cannot_leave_its_cell() -> None:
    hold = Hold("a | b <img src=x> `code`", Reason.NO_CAPACITY, "line\nnew # heading [x](y)")
    text = plan_markdown(Plan(Revision("a" * 40), holds=(hold,)))
    line = next(line for line in text.splitlines() if line.startswith("- "))
    assert "<img" not in line
    assert "\\|" in line
    assert "\\[x\\](y)" in line
    assert "\\\\n" in line


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "--api-key", "env.OPENAI_API_KEY", "db_password", "client-secret", "apikey"],
)
def test_telling_names_are_sensitive(name: str) -> None:
    assert sensitive(name)


@pytest.mark.parametrize(
    "name", ["--tokenizer", "--max-num-batched-tokens", "pad_token_id", "keys", "NCCL_IB_HCA"]
)
def test_harmless_names_are_not_sensitive(name: str) -> None:
    assert not sensitive(name)


def test_a_secret_after_its_flag_is_masked_in_both_spellings() -> None:
    argv = ["serve", "--api-key", "s3cret", "--api-key=s3cret", "--port", "1"]
    assert masked_argv(argv) == (
        "serve",
        "--api-key",
        "(sensitive)",
        "--api-key=(sensitive)",
        "--port",
        "1",
    )
    assert masked("args[1]", "'--api-key=s3cret'") == "--api-key=(sensitive)"


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a" * 30,
        "ghp_" + "b" * 30,
        "sk-" + "c" * 30,
        "AKIA" + "D" * 16,
        "user:pass@",
    ],
)
def test_what_has_the_shape_of_a_secret_is_cut_out_of_any_text(secret: str) -> None:
    text = f"log: https://{secret}host" if "@" in secret else f"log: {secret} end"
    shown = secret.removesuffix("@")
    assert shown not in printable(text)
    hold = Hold("replica a-0", Reason.START_FAILED, text)
    plan = Plan(Revision("a" * 40), holds=(hold,), warnings=(text,))
    for said in (plan_text(plan), plan_markdown(plan), json.dumps(plan_json(plan, observed_at=""))):
        assert shown not in said


def test_marks_that_reorder_text_are_shown_as_escapes() -> None:
    assert printable("a\u202eb\x1b[0m\u2028ü") == "a\\u202eb\\x1b[0m\\u2028ü"


def test_a_long_value_keeps_both_ends() -> None:
    assert shortened("a" * 100 + "b" * 100, 30).startswith("aaa")
    assert shortened("a" * 100 + "b" * 100, 30).endswith("bbb")
    assert len(shortened("a" * 200, 30)) == 30
