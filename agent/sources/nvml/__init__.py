"""NVML as a source of findings, in a worker process of its own, because any NVML call can block for ever.

``worker`` runs in that process (with ``poller``, ``reader``, ``gauges``, ``mig``, ``events`` and ``calls``) and talks
``protocol`` on its pipes; ``source`` supervises it from the agent (with ``child``, ``presence`` and ``questions``) and
``telling`` makes findings of what it says (with ``changes``, and the rules of ``agent.health.vitals``). A hung worker
is neither killed, which can wedge a GPU, nor doubled, because each stuck one holds driver locks: it is reported, and
taken up again when it moves.
"""
