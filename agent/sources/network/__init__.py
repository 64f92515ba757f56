"""NICs as a source of findings: netlink tells of links at once, sysfs of what is there and of RDMA.

``netlink`` and ``uevents`` listen on the event loop. What asks the kernel (``sysfs``, listing links) may wait for a
lock that a driver holds while its firmware is dead: ``reader`` does it in threads of its own, with a deadline.
``view`` puts both together as readings for ``agent.health.nics``, and ``source`` runs it all.
"""
