"""Maintain the annotation with the containers' restart counts, by any cause, on pods that read it.

A pod reads it by a downward API volume; no other pod is written to. It is one annotation written through
``pods/status``, which agents may patch anyway (of a pod itself they may change nothing, especially not its image).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from kubemend.agent.model.workloads import PodUid, PodView
from kubemend.agent.restart import members, options
from kubemend.common import aio, contained
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)

ANNOTATION: Final = options.RESTARTS
_LONGEST: Final = 1000
"""Characters of the annotation. Views have no more of it, and would show a longer one as wrong after each write."""


def counts(pod: PodView) -> str:
    """Return the annotation's value: ``NAME=COUNT`` of each target that was restarted, with commas. Pure.

    The counts are kubelet's (``restartCount``). Empty if none was restarted, or the pod's annotations are invalid.
    Targets that do not fit are left out.
    """
    try:
        named = options.parse(pod.annotations).containers
    except options.BadAnnotationError:
        return ""
    targets = members.targets(pod, named=named)
    restarted = (spec for spec in pod.containers if spec.name in targets and spec.restart_count)
    text = ",".join(f"{spec.name}={spec.restart_count}" for spec in restarted)
    return text if len(text) <= _LONGEST else text[: _LONGEST + 1].rpartition(",")[0]


class RestartCounts:
    """The reporter. ``observe`` queues pods, ``run`` writes. The counts are read when they are written.

    Changes that come while a pod waits are written together.
    """

    def __init__(
        self, *, api: client.KubeClient, pods: Callable[[], Mapping[PodUid, PodView]], spacing: float = 0.2
    ) -> None:
        """``spacing``: seconds for which changes of one pod are gathered."""
        self._api = api
        self._pods = pods
        self._spacing = spacing
        self._waiting: set[PodUid] = set()
        self._queue: asyncio.Queue[PodUid] = asyncio.Queue()

    def observe(self, pod: PodView) -> None:
        """Process a pod as the API shows it. Does not block."""
        uid = pod.ref.uid
        if uid not in self._waiting and _lacks(pod):
            self._waiting.add(uid)
            self._queue.put_nowait(uid)

    async def run(self) -> None:
        """Write for as long as the agent runs, one pod after another."""
        backoff = aio.Backoff(first=0.5, limit=30.0)
        while True:
            uid = await self._queue.get()
            await asyncio.sleep(self._spacing)
            self._waiting.discard(uid)
            pod = self._pods().get(uid)
            if pod is None or not _lacks(pod):
                continue
            done = False
            with contained.within(contained.Part.CONDITION, pod.ref):
                done = await self._write(pod)
            if done:
                backoff.reset()
                continue
            await backoff.wait()
            if (again := self._pods().get(uid)) is not None:
                self.observe(again)

    async def _write(self, pod: PodView) -> bool:
        """Write one pod's annotation; return False if it must be tried again."""
        patch: dict[str, Any] = {"metadata": {"uid": pod.ref.uid, "annotations": {ANNOTATION: counts(pod)}}}
        try:
            await self._api.patch_status(paths.pod(pod.ref.namespace, pod.ref.name), patch)
        except (errors.NotFoundError, errors.ConflictError, errors.InvalidError, errors.ForbiddenError) as error:
            log.info("restart_counts.refused", pod=str(pod.ref), error=str(error))  # until the pod changes again
        except errors.KubeError as error:
            log.info("restart_counts.not_written", pod=str(pod.ref), error=str(error))
            return False
        return True


def _lacks(pod: PodView) -> bool:
    """Return whether a pod that reads the annotation has a wrong value."""
    if not pod.reads_restarts or pod.deleting or pod.is_over:
        return False
    return counts(pod) != pod.annotations.get(ANNOTATION, "")
