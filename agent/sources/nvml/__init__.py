"""NVML as a source of findings, in a worker process of its own, because any NVML call can block indefinitely.

``worker`` runs in that process (with ``poller``, ``reader``, ``gauges``, ``mig``, ``events`` and ``calls``) and sends
and receives ``protocol`` messages on its pipes. ``source`` supervises it from the agent (with ``child``, ``detection``
and ``queries``), and ``finding_emitter`` converts its messages into findings (with ``changes``, and the rules of
``agent.health.gpu``). A hung worker is not killed, because that can wedge a GPU, and no second one is started, because
each stuck one holds driver locks. The hang is reported, and the worker resumes when its call returns.
"""
