"""`python -m reconciler.cli`: the same program, where the script is not on PATH."""

from __future__ import annotations

import sys

from reconciler.cli import main

sys.exit(main())
