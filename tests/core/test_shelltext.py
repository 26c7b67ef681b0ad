"""The pasted text brings the reconciler's secrets from a folder, and never names a value."""

from __future__ import annotations

import subprocess
from pathlib import Path

from reconciler.core.describe import DescribedCommand, DescribedRank, Description
from reconciler.core.shelltext import shell

LAUNCH_DIR = "<root>/launches/x"


def pasted(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What `sh` makes of a rank with one secret by variable and one by path."""
    command = DescribedCommand(
        name="serve",
        argv=("sh", "-c", 'printf "%s|" "$KEY" "$(cat "$1")"', "sh", f"{LAUNCH_DIR}/secrets/tls"),
        env={},
        env_files={"KEY": "reconciler:key"},
    )
    rank = DescribedRank(
        rank=0,
        node="gpu-a",
        address="10.0.0.1",
        gpus=(),
        commands=(command,),
        secrets=("key", "tls"),
        launch_dir=LAUNCH_DIR,
    )
    text = shell(Description("placement chat", "command", {}, (rank,), ()))
    return subprocess.run(
        ["sh"],
        input=text,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_pasted_secrets_come_from_the_named_folder(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("canary-1\n")
    (tmp_path / "tls").write_text("canary-2\n")
    done = pasted(tmp_path, SECRETS=str(tmp_path))
    assert (done.stdout, done.returncode) == ("canary-1|canary-2|", 0), done


def test_without_the_folder_the_pasted_text_ends_and_says_what_it_needs(tmp_path: Path) -> None:
    done = pasted(tmp_path)
    assert done.returncode != 0
    assert "SECRETS: set it to a folder that holds key tls" in done.stderr
    assert done.stdout == ""
