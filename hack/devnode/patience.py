"""Deadlines of calls from outside the product: a busy machine answers late, and that is no result."""

from typing import Final

from kubemend.agent.clients.cri import client as cri
from kubemend.common.kube import client as kube

SECONDS: Final = 60.0
API: Final = kube.Deadlines(connect=SECONDS, call=SECONDS, watch=3600.0, silence=600.0)
"""No watch ends before its reader does, however long a scenario takes."""
RUNTIME: Final = cri.Deadlines(read=SECONDS, change=SECONDS, margin=SECONDS)
