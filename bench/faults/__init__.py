"""Break what surrounds the product, one thing after another, and look at what it loses.

``suite`` has the faults with their promises, ``stage`` the nodes, ``product`` its processes, ``trainers`` the pods that
are hit, ``telling`` takes down what was tried, measured and lost. Each fault is a module of its own.
"""
