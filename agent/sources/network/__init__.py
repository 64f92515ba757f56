"""NICs as a source of findings: netlink reports link changes immediately, sysfs shows devices and RDMA state.

``netlink`` and ``sockets`` listen on the event loop. Calls into the kernel (``sysfs``, listing links) may wait for a
lock that a driver holds while its firmware is dead: ``reader`` makes them in threads of its own, with a deadline.
``view`` combines both into readings for ``agent.health.nic.rules``, and ``source`` runs it all.
"""
