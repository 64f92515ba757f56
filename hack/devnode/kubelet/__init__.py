"""A stand-in for kubelet: real containers through a real CRI runtime, decided by kubelet's own rules.

It exists so that the restart path can be tested where no kubelet binary is at hand. What matters is that it is not
kinder than kubelet: it sees the runtime only through its relist, restarts what kubelet would restart, and never
kills the duplicates that kubelet would not kill. ``tests/contract/kubelet`` runs one suite on it and on a real kubelet.

``spec`` (what the pod asks for), ``observed`` (what the runtime shows), ``rules`` (what to do), ``backoff``,
``statuses``, ``phase``, ``conditions`` (what to tell the API) and ``config`` (what to ask of the runtime) are pure;
``pleg``, ``worker``, ``probes``, ``volumes``, ``runtime``, ``api`` and the servers do the work.
"""
