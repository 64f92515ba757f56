"""Break the product's dependencies, one after another, and check what it loses.

``suite`` has the faults with their promises, ``stage`` the nodes, ``product`` its processes, ``trainers`` the pods that
are hit, ``reporting`` records actions, figures and losses. ``disks`` makes disks that can be full, ``wallclock`` a
clock that can be set. Each fault is a module of its own.
"""
