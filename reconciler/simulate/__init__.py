"""A fleet in memory: nodes with the agent's request semantics, a virtual clock, faults on purpose.

What `docs/agent-protocol.md` says of a node holds here too, and a contract suite holds both to it;
what it does not say (sockets, processes, files) is left out. Nothing here is used to act on real
nodes: it plays rollouts forward for people and drives the tests.
"""
