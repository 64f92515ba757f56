"""``kubemend scan``: check the devices of a machine once, with or without Kubernetes or an agent on it.

``checks`` runs all checks concurrently (``gpus``, ``kernel_log``, ``nics``), each with a timeout. ``judging`` folds
the results into the verdicts that an agent would reach. ``rendering`` formats them. Nothing is changed or stored.
"""
