"""An API server for tests and the demo where no real kube-apiserver can be had, and the port that both fill.

Honest within its bounds: resource versions, watches with history, status subresources, the three patch types,
preconditions, graceful deletion, finalizers, selectors, pages, the schemas of custom resources, what may change of a
Job and the tokens of service accounts behave as the real ones do (``tests/contract/api`` runs on both). Admission,
other validation (rules in CEL, too), RBAC and server-side apply are answered with 501 rather than with a guess, or
stated in ``schemas`` and ``jobs``.
"""

from pathlib import Path
from typing import Protocol


class ApiServer(Protocol):
    """An API server of a dev node, real or not. Objects survive ``stop`` and ``start``; the port stays the same."""

    @property
    def kubeconfig(self) -> Path:
        """The file with which clients get in as administrator."""

    async def start(self) -> None:
        """Listen, and return when requests are answered."""

    async def stop(self) -> None:
        """Stop listening and break what is open; everything is kept for the next ``start``."""

    async def forget_history(self) -> None:
        """Make every watch that goes on from an older version end with 410, as etcd's compaction does."""
