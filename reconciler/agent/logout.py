"""Whether the end of the login ends what was started in it: then plain mode must not be used.

By logind's settings and by whose session this is. Who we became in it by sudo does not matter:
logind ends the whole session of the one who logged in.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
from typing import List, Optional

SEATS = "/run/systemd/seats"
"""Made by logind where it runs."""


def ends_all() -> str:
    """Why nothing may be started here in plain mode; empty: it may."""
    owner = session_owner(_text("/proc/self/cgroup"))
    if owner is None or not os.path.isdir(SEATS):
        return ""
    files = ["/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"]
    for folder in ("/usr/lib", "/run", "/etc"):
        files += sorted(glob.glob("%s/systemd/logind.conf.d/*.conf" % folder))
    user = _user_name(owner)
    if not kills("".join(_text(path) for path in files), user):
        return ""
    return (
        "logind ends the processes of %s at logout (KillUserProcesses=yes in logind.conf): "
        "use mode system, or set KillUserProcesses=no" % user
    )


def session_owner(cgroups: str) -> Optional[int]:
    """Uid of the login session that /proc/self/cgroup is in; None: in none that logind knows."""
    found = re.search(r"/user-(\d+)\.slice/session-", cgroups)
    return int(found.group(1)) if found else None


def kills(settings: str, user: str) -> bool:
    """Whether logind with these settings ends the processes of a session of `user` with it.

    logind.conf(5): of a word the last one counts, a list grows, and an empty one begins anew.
    """
    word = _values(settings, "KillUserProcesses", ["no"])[-1:] or ["no"]
    only = _values(settings, "KillOnlyUsers", [])
    return (
        word[0].lower() in ("yes", "true", "1", "on")
        and user not in _values(settings, "KillExcludeUsers", ["root"])
        and (not only or user in only)
    )


def _values(settings: str, name: str, default: List[str]) -> List[str]:
    found = list(default)
    for value in re.findall(r"(?m)^[ \t]*%s[ \t]*=(.*)$" % name, settings):
        found = found + value.split() if value.strip() else []
    return found


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read() + "\n"
    except OSError:
        return ""
