"""The account that runs the command, as a container or a service has it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = """
import os
from pathlib import Path
from reconciler.nodes.pool import PoolSettings, defaults_of
from reconciler.settings import Settings
os.setuid(54321)
print(Settings.read({"HOME": "/nowhere"}).user)
print(repr(defaults_of(PoolSettings(home=Path("/nowhere"))).user))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_user_id_without_a_name_is_its_number_and_no_login() -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["54321", "''"], done.stderr
