"""The loop: one pass from a git revision to a report, and the daemon that repeats it.

`passes` is the line itself (`values` its arguments, `telling` its report); `head`, `choosing` and
`revisions` say what it works on, `trust` and `turning` what of that may be followed, `leases` who
may act, `limits` what fewer rights leave of a plan, `outcome` what came of it; `daemon`, `trigger`,
`waiting` and `sink` repeat it and tell of it. Nothing here is imported by what it calls.
"""

from __future__ import annotations

from reconciler.loop.passes import Request, run_pass
from reconciler.loop.seams import Edges
from reconciler.report.passreport import PassReport

__all__ = ["Edges", "PassReport", "Request", "run_pass"]
