"""``kubemend doctor``: check the agent's requirements on this node, with a hint for each failure.

``examine`` runs all checks concurrently, each with a timeout of its own; ``rendering`` formats the results. There is
one module per subject. The agent needs nothing of this package, and the package changes nothing on the node.
"""
