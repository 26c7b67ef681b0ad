"""The program that runs on nodes: standard library only, Python 3.8+, imports nothing of ours.

It is packed into one zip application (`package.py`), brought to a node by one line
(`bootstrap.py`) and speaks docs/agent-protocol.md (`serve.py`). What it starts is held by one
supervisor process per shard (`supervisor.py`), which outlives it and the SSH session.
"""

VERSION = "0.1.0"
"""Equal to reconciler.__version__ (a test holds it); the agent cannot import that."""
