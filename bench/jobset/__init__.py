"""What do JobSets cost: a look at one, its creation, a restart in place; and how does that grow with its Jobs?

For JobSets of 10, 100 and 1000 child Jobs, the real controller runs as a process of its own on the stand-in for the API
server. ``look_ms`` are looks that find nothing to do, by the controller's own metrics; ``creation`` is from the JobSet
to its last Job. Then simulated agents connect, one for each Job's pod, and one member after another fails:
``api_calls_per_restart`` counts every request, reads too, from the fault until the JobSet's status tells of the restart
(not watches, nor the Lease). ``growth`` is what 1000 Jobs take, over what 10 take.

Then, with real containers: twenty workers of one JobSet on one node, five failures in a row, another worker each time,
restarted in place by controller and agent. All times are the workers' own, from the fault to the last new worker
running. The first three failures come at once; before the fourth the gang lives for as long as a gang must that is not
slowed down for dying young (``common.budgets.Backoff``: a minute), as one that trains would have.
"""
