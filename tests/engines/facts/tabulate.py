"""Makes `engines/tables/*.py` from the facts beside this file; a test holds the two equal.

Run it after a table of facts was read anew from a newer engine: `python
tests/engines/facts/tabulate.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
TABLES = HERE.parents[2] / "engines" / "tables"
ENGINES = ("vllm", "sglang", "llamacpp", "ray")

HEAD = '''"""Flags of {source}.

Generated from tests/engines/facts/{engine}.json; do not edit. A row is the spellings of a flag,
then how many words it takes (`0`, `1`, `2`, `?`, `+`), then `json` where the value is JSON,
`removed` where the engine refuses it by now, and `env=NAME` for the variable that sets it when no
flag does.
"""

SOURCE = {source!r}
VERSION = {version!r}
ABBREVIATES = {abbreviates!r}
'''


def rows(facts: dict) -> list[str]:
    """One row a flag, in the engine's own order."""
    lines = []
    for flag in facts["flags"]:
        words = [*flag["names"], flag["arity"]]
        words += [word for word in ("json", "removed") if flag.get(word)]
        words += [f"env={flag['env']}"] if flag.get("env") else []
        lines.append(" ".join(words))
    return lines


def render(facts: dict) -> str:
    """The text of one table module."""
    head = HEAD.format(
        **{key: facts[key] for key in ("engine", "source", "version", "abbreviates")}
    )
    body = head.replace("'", '"') + 'ROWS = """\n' + "\n".join(rows(facts)) + '\n"""\n'
    long = any(len(line) > 100 for line in body.splitlines())
    return f"# ruff: noqa: E501 - rows as the engine has them\n{body}" if long else body


def render_quantization(facts: dict) -> str:
    """The text of the module with least compute capabilities."""
    lines = [
        f'    "{name}": ({value // 10}, {value % 10}),'
        for name, value in facts["min_capability"].items()
    ]
    return (
        '"""Least compute capability for each quantization of vLLM 0.32.0, by its own\n'
        "`QuantizationConfig.get_min_capability()`.\n\n"
        "Generated from tests/engines/facts/vllm-quantization.json; do not edit. Pairs of\n"
        'numbers: as text, "10.0" would be below "9.0".\n'
        '"""\n\n'
        "LEAST_CAPABILITY = {\n" + "\n".join(lines) + "\n}\n"
    )


def texts() -> dict[str, str]:
    """File name in `engines/tables` → its text."""
    made = {
        f"{name}.py": render(json.loads((HERE / f"{name}.json").read_text())) for name in ENGINES
    }
    made["vllm_quantization.py"] = render_quantization(
        json.loads((HERE / "vllm-quantization.json").read_text())
    )
    return made


if __name__ == "__main__":
    for name, text in texts().items():
        (TABLES / name).write_text(text)
