"""docs/reference.md is what the schemas say, and says of each field whether an edit restarts."""

from __future__ import annotations

from pathlib import Path

from reconciler.fleet import schemas
from reconciler.fleet.reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "write it anew: python -m reconciler.fleet.reference docs/reference.md"
    )


def test_every_field_of_every_kind_is_on_the_page() -> None:
    *kinds, references = reference().split("\n## ")[1:]
    assert references.startswith("References")
    sections = dict(zip(schemas.KINDS, kinds, strict=True))
    for kind, section in sections.items():
        assert section.startswith(kind)
        root = schemas.schema(kind)
        for node in (root, *root["$defs"].values()):
            for name in node.get("properties", ()):
                assert f"\n| `{name}`" in section, f"{kind}.{name}"


def test_a_field_that_restarts_says_so() -> None:
    rows = {
        line.split("`")[1]: line
        for line in reference().split("## Profile")[1].split("###")[0].splitlines()
        if line.startswith("| `")
    }
    assert "| **yes** |" in rows["args"]
    assert "| no |" in rows["start_timeout_s"]
