"""Whole Debian machines on this one: systemd, sshd, cgroups, reboot and power loss for the tests.

Loopback sshd nodes (`reconciler/nodes/loopback.py`) are the everyday ones. A lab node is for what
they cannot show: transient units, another boot id, a cut power line, a full disk. docs/lab.md tells
how to use it; nothing of the product imports it.
"""

from tools.labfleet.fleet import LabFleet, NodeState
from tools.labfleet.host import LabError, missing
from tools.labfleet.nvml import LabGpu
from tools.labfleet.record import LabNode, LabOptions

__all__ = ["LabError", "LabFleet", "LabGpu", "LabNode", "LabOptions", "NodeState", "missing"]
