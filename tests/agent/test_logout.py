"""Whether logind ends what is started in a session: by its settings, and by whose session it is."""

from __future__ import annotations

import pytest

from reconciler.agent import logout

YES = "[Login]\nKillUserProcesses=yes\n"


@pytest.mark.parametrize(
    ("settings", "user", "killed"),
    [
        ("", "op", False),
        ("#KillUserProcesses=yes\n", "op", False),
        (YES, "op", True),
        (YES, "root", False),
        (YES + "KillUserProcesses = no\n", "op", False),
        (YES + "KillExcludeUsers=op\n", "op", False),
        (YES + "KillExcludeUsers=op\n", "root", False),
        (YES + "KillExcludeUsers=\n", "root", True),
        (YES + "KillOnlyUsers=ada kim\n", "op", False),
        (YES + "KillOnlyUsers=ada\nKillOnlyUsers=op\n", "op", True),
    ],
)
def test_logind_ends_what_its_settings_say(settings: str, user: str, killed: bool) -> None:
    assert logout.kills(settings, user) is killed


@pytest.mark.parametrize(
    ("cgroups", "owner"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", 1000),
        ("1:name=systemd:/user.slice/user-0.slice/session-c1.scope\n0::/\n", 0),
        ("0::/system.slice/ssh.service\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice\n", None),
        ("", None),
    ],
)
def test_a_session_is_that_of_who_logged_in(cgroups: str, owner: int | None) -> None:
    assert logout.session_owner(cgroups) == owner
