"""The fleet repo that the README shows is one that validates."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readmes_fleet_repo_validates_without_a_finding(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    parts = re.split(r"(?m)^(?:---\n)?# (\S+\.yaml)\n", block)
    assert parts[0] == ""
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=10)
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli", "--repo", str(tmp_path), "validate", "--strict"],
        cwd=ROOT,
        env={**os.environ, "RECONCILE_CACHE_DIR": str(tmp_path / ".git" / "cache")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr
