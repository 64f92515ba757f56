"""Play scenarios of JobSets: YAML in ``tests/jobset/scenarios`` with the events of one, and the expected results.

A scenario plays with our controller of JobSets on a real API server, with the real Job controller and the real garbage
collector. The scenario is the user, the kubelets, and the rounds of the JobSet's gang; ``reading`` defines the format.
"""
