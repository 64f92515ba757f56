"""What a cluster's controllers do for Jobs, where none runs: Indexed Jobs, who is scheduled where, and garbage.

``python -m hack.devnode.jobcontroller`` runs them beside an API server. Honest within its bounds: what Jobs' pods are
named and labelled, what is counted and when a Job has come to its end are as in Kubernetes 1.36's controllers
(``tests/contract/jobs`` runs on both). NonIndexed Jobs and ``successPolicy`` are left alone, and said so in the log.
The scheduler knows readiness, node selectors, taints, gates and device counts, and spreads; it does not know affinity,
priorities or memory.
"""
