"""Measure the cost of JobSets: reconciling one, its creation, a restart in place; and how it grows with its Jobs.

For JobSets of 10, 100 and 1000 child Jobs, the real controller runs as a process of its own with the real API server
and Job controller. ``look_ms`` are reconciles that find nothing to do, by the controller's own metrics; ``creation`` is
from the JobSet to its last Job. Then simulated agents connect, one for each Job's pod, and one member after another
fails: ``api_calls_per_restart`` counts every request, reads too, from the fault until the JobSet's status shows the
restart (except watches and the Lease). ``growth`` is the cost of 1000 Jobs over that of 10.

Then, with real containers: twenty workers of one JobSet on one node, five failures in a row, another worker each time,
restarted in place by controller and agent. All times are the workers' own, from the fault to the last new worker
running. The first three failures come at once; before the fourth the gang lives long enough to avoid the backoff for
short lifetimes (``common.budgets.Backoff``: a minute), as a training gang would have.
"""
