"""The Lease by which replicas elect the leader. Its epoch is in an annotation of the Lease.

Each write carries the resource version that was read, so of two concurrent writes one fails. The epoch grows in the
same write that changes the holder, so no two leaders ever have the same epoch.
"""

import datetime as dt
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import structlog

from kubemend.common import epochs
from kubemend.common.kube import client, errors, paths
from kubemend.common.kube.transport import Json
from kubemend.controller.leader import library

log = structlog.get_logger(__name__)

EPOCH: Final = "kubemend.io/epoch"
"""Annotation of the Lease: the epoch of the leader that holds it or held it last."""
HUB: Final = "kubemend.io/hub-address"
"""Annotation of the Lease: ``HOLDER@IP:PORT``, the holder's hub, by which other replicas check its process."""
_LONGEST_EPOCH: Final = 18
"""Digits; a longer number is invalid."""


class EpochLock(library.BaseLock):  # type: ignore[misc]  # the library has no types
    """The library's lock on kubemend's client, whose calls have timeouts. Errors become False, and ``error``.

    ``epoch`` is this replica's once it is written. ``floor``: the lowest that may be written from now on. ``holder`` is
    the Lease's last known holder, "" if it had none. ``regained``: this replica's last write took the Lease over, or
    acquired a free one. ``state`` changes with every write of the Lease; while it equals ``gone``, the holder counts as
    dead.
    """

    def __init__(
        self,
        *,
        api: client.KubeClient,
        namespace: str,
        name: str,
        identity: str,
        predecessors: str = "",
        hub: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``clock`` returns Unix seconds, for the Lease's times and as the upper limit of epochs.

        ``predecessors``: common prefix of the identities of earlier processes of this container, which are dead; "" if
        none are known. ``hub`` is the address of this replica's hub as ``IP:PORT``; "" if it is not published.
        """
        super().__init__(name, namespace, identity)
        self._api = api
        self._collection = paths.collection("leases", namespace=namespace, group="coordination.k8s.io")
        self._path = f"{self._collection}/{quote(name, safe='')}"
        self._clock = clock
        self._predecessors = predecessors
        self._hub = hub
        self.gone = ""
        self._lease: Json = {}
        self.epoch = 0
        self.floor = 1
        self.holder = ""
        self.regained = False
        self.error: errors.KubeError | None = None

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:  # noqa: ARG002 - the library's signature
        """Return the record in the Lease, None if it has no holder; or False and the reason, in the library's form."""
        try:
            self._read(await self._api.get(self._path))
        except errors.NotFoundError:
            self._lease, self.holder, self.error = {}, "", None
            return False, library.ApiException(status=404, reason="Not Found", body='{"code": 404}')
        except errors.KubeError as error:
            self.error = error
            return False, library.ApiException(status=error.status, reason=str(error))
        if not self.holder or self._holder_is_dead():
            return True, None
        spec = self._lease["spec"]
        return True, library.LeaderElectionRecord(
            self.holder,
            str(spec.get("leaseDurationSeconds") or 1),
            str(spec.get("acquireTime") or "unknown"),
            str(spec.get("renewTime") or "unknown"),
        )

    @property
    def state(self) -> str:
        """Return the resource version of the Lease last read; "" if there is none."""
        return str((self._lease.get("metadata") or {}).get("resourceVersion") or "")

    @property
    def holders_hub(self) -> str:
        """Return the address of another holder's hub; "" if there is no other holder, or it has published none.

        An address that an earlier holder published does not count: a release that does not know the annotation leaves
        it.
        """
        value = str(((self._lease.get("metadata") or {}).get("annotations") or {}).get(HUB) or "")
        holder, _, address = value.rpartition("@")
        return address if holder == self.holder != self.identity else ""

    def _holder_is_dead(self) -> bool:
        """Return whether the holder is another process that is known to be dead."""
        if self.holder == self.identity:
            return False
        ours = bool(self._predecessors) and self.holder.startswith(self._predecessors)
        return ours or (bool(self.gone) and self.gone == self.state)

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:  # noqa: ARG002
        """Create the Lease; return whether this replica holds it."""
        return await self._write(election_record)

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:  # noqa: ARG002
        """Take or renew the Lease that was read last; return whether this replica holds it."""
        return await self._write(updated_record)

    async def release(self) -> None:
        """Release the Lease, so that other replicas need not wait until it expires. Raises KubeError."""
        self._read(await self._api.get(self._path))
        if self.holder == self.identity:
            spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._api.update(self._path, {**self._lease, "spec": spec})

    async def _write(self, record: Any) -> bool:
        ours = self.holder == self.identity
        epoch = self._next_epoch(ours=ours)
        if epoch > epochs.highest(self._clock()):
            # temporary: some client has written an epoch that is too high
            log.warning("lease.epoch_ahead", epoch=epoch)
            return False
        wanted = self._with(epoch, duration=int(float(record.lease_duration)), ours=ours)
        try:
            if self._lease:
                self._read(await self._api.update(self._path, wanted))
            else:
                self._read(await self._api.create(self._collection, wanted))
        except errors.KubeError as error:
            self.error = None if isinstance(error, errors.ConflictError) else error
            log.debug("lease.write_failed", error=str(error))
            return False
        self.regained = not ours
        return True

    def _next_epoch(self, *, ours: bool) -> int:
        known = max(self.epoch, self._epoch_of(self._lease))
        return max(known if ours else known + 1, self.floor)

    def _with(self, epoch: int, *, duration: int, ours: bool) -> Json:
        """Return the Lease to write."""
        now = dt.datetime.fromtimestamp(self._clock(), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata, spec = self._lease.get("metadata") or {"name": self.name}, self._lease.get("spec") or {}
        transitions = int(spec.get("leaseTransitions") or 0)
        return {
            **self._lease,
            "metadata": {**metadata, "annotations": self._annotations(metadata, epoch=epoch)},
            "spec": {
                **spec,
                "holderIdentity": self.identity,
                "leaseDurationSeconds": duration,
                "acquireTime": spec.get("acquireTime") if ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if ours or not self._lease else transitions + 1,
            },
        }

    def _annotations(self, metadata: Json, *, epoch: int) -> Json:
        others = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != HUB}
        return {**others, EPOCH: str(epoch), **({HUB: f"{self.identity}@{self._hub}"} if self._hub else {})}

    def _read(self, lease: Json) -> None:
        self._lease = lease
        self.holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        self.error = None
        if self.holder == self.identity:
            self.epoch = max(self.epoch, self._epoch_of(lease))

    def _epoch_of(self, lease: Json) -> int:
        """Return the epoch of a Lease's current or last holder; 0 if it is invalid or impossible."""
        text = ((lease.get("metadata") or {}).get("annotations") or {}).get(EPOCH, "")
        epoch = int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_EPOCH else 0
        return epoch if epoch <= epochs.highest(self._clock()) else 0
