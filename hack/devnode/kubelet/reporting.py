"""Tells the API about pods: the newest status of each, converging after failures (kubelet's status manager)."""

import asyncio
from dataclasses import dataclass

import structlog

from common.kube import client, errors, paths
from hack.devnode.kubelet.progress import Progress
from hack.devnode.kubelet.spec import Json, Pod

log = structlog.get_logger(__name__)

_RETRY = 1.0


@dataclass(slots=True)
class _Wanted:
    pod: Pod
    status: Json
    delete: bool = False


class Reporter:
    """Keeps the last status of every pod and writes it to the API when it changed."""

    def __init__(self, kube: client.KubeClient, *, progress: Progress) -> None:
        self._kube = kube
        self._progress = progress
        self._known: dict[str, Json] = {}
        self._sent: dict[str, Json] = {}
        self._wanted: dict[str, _Wanted] = {}
        self._work = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Whether everything has been told."""
        return not self._wanted

    def known(self, uid: str) -> Json | None:
        """Return the status that was decided last, or None when this process has not decided one yet."""
        return self._known.get(uid)

    def report(self, pod: Pod, *, decided: Json, tell: Json) -> None:
        """Remember ``decided`` and write ``tell`` (the two differ while a terminal phase is held back)."""
        self._known[pod.uid] = decided
        if self._sent.get(pod.uid) != tell:
            self._wanted[pod.uid] = _Wanted(pod=pod, status=tell)
            self._work.set()

    def delete(self, pod: Pod) -> None:
        """Delete the pod object for good, after its last status is written."""
        wanted = self._wanted.setdefault(pod.uid, _Wanted(pod=pod, status=self._sent.get(pod.uid, {})))
        wanted.delete = True
        self._work.set()

    def forget(self, uid: str) -> None:
        """The pod object is gone."""
        for table in (self._known, self._sent, self._wanted):
            table.pop(uid, None)
        self._progress.changed()

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            for uid in list(self._wanted):
                await self._tell(uid)
            self._progress.changed()

    async def _tell(self, uid: str) -> None:
        wanted = self._wanted.pop(uid)
        try:
            if self._sent.get(uid) != wanted.status:
                await self._patch(wanted.pod, wanted.status)
                self._sent[uid] = wanted.status
            if wanted.delete:
                await self._delete(wanted.pod)
        except errors.ApiUnavailableError as error:
            log.warning("status.retry", pod=str(wanted.pod), error=str(error))
            self._wanted.setdefault(uid, wanted)
            asyncio.get_running_loop().call_later(_RETRY, self._work.set)
        except (errors.NotFoundError, errors.ConflictError):
            log.info("status.pod_gone", pod=str(wanted.pod))
        except errors.KubeError as error:
            log.error("status.refused", pod=str(wanted.pod), error=str(error))

    async def _patch(self, pod: Pod, status: Json) -> None:
        before = self._sent.get(pod.uid) or pod.status
        body = {"metadata": {"uid": pod.uid}, "status": patch_of(before=before, after=status)}
        await self._kube.patch_status(paths.pod(pod.namespace, pod.name), body)

    async def _delete(self, pod: Pod) -> None:
        options = {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid},
        }  # fmt: skip
        await self._kube.delete(paths.pod(pod.namespace, pod.name), options=options)


def patch_of(*, before: Json, after: Json) -> Json:
    """Return the strategic merge patch of a status: kubelet's own fields only, foreign conditions untouched.

    What merges instead of being replaced loses its old values by name: ``reason`` and ``message``, and in ``podIPs``
    (merged by ``ip``) an address that is no longer the pod's.
    """
    known = {item["type"]: item for item in before.get("conditions") or ()}
    patch = _without_leftovers(before, after)
    patch["conditions"] = [
        _without_leftovers(known.get(item["type"], {}), item) for item in after.get("conditions", ())
    ]
    gone = {item["ip"] for item in before.get("podIPs") or ()} - {item["ip"] for item in after.get("podIPs") or ()}
    if gone and "podIPs" in after:
        patch["podIPs"] = [*after["podIPs"], *({"$patch": "delete", "ip": ip} for ip in sorted(gone))]
    return patch


def _without_leftovers(before: Json, after: Json) -> Json:
    leftovers = [key for key in ("reason", "message") if before.get(key) and key not in after]
    return {**after, **dict.fromkeys(leftovers)}
