"""The client library's leader election: only the rules by which a lease is acquired and kept.

Its own loop around them is not used. In that loop an error of the connection passes through and leaves the leading task
running without a lease; so does cancelling it. A renewal has no timeout, so one that hangs outlasts the lease. A leader
that sees another holder continues until its renewal deadline. One that has lost its lease never campaigns again.
"""

import logging
import sys
import time
from types import SimpleNamespace

from kubemend.common import footprint

with footprint.import_without_package(
    "kubernetes", "kubernetes.aio", "kubernetes.aio.client", "kubernetes.aio.leaderelection"
):
    from kubernetes.aio.client.exceptions import ApiException
    from kubernetes.aio.leaderelection.electionconfig import Config
    from kubernetes.aio.leaderelection.leaderelection import LeaderElection
    from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
    from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

logging.getLogger(LeaderElection.__module__).disabled = True
"""It logs an error at each attempt while the API server is away; the component's status is logged once."""

sys.modules[LeaderElection.__module__].time = SimpleNamespace(time=time.monotonic)  # type: ignore[attr-defined]
"""It judges by the wall clock how long another replica has not renewed the Lease: a clock that is set forward would end
a valid Lease, and one that is set back make that of a dead leader last for as long.
"""

__all__ = ["ApiException", "BaseLock", "Config", "LeaderElection", "LeaderElectionRecord"]
