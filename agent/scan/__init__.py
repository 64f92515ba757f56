"""``kubemend scan``: one look at the devices of a machine, with or without Kubernetes or an agent on it.

``looking`` looks at everything at once (``gpus``, ``kernel_log``, ``nics``), each part with a deadline; ``judging``
folds what was found into the verdicts that an agent would come to; ``rendering`` says them. Nothing is changed or kept.
"""
