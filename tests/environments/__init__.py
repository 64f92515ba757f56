"""Wire the agent's parts on fakes once, for all tests.

- ``node``: a node's sources, state file, metrics and verdicts; ``findings``: the finding pipeline on it.
- ``runtime``: the fake container runtime with one pod's container; ``pod_env``: with a pod of several.
- ``restarts``: the scheduler of restarts on the fake runtime; ``rounds``: a member of gang rounds on it.
"""
