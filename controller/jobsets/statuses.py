"""Write a JobSet's status as a whole, and only over the version that it was decided from."""

from typing import Final

from kubemend.common import aio
from kubemend.common.kube import client, errors, paths
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import JobSet
from kubemend.controller.jobsets import views
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.views import Views

_ATTEMPTS: Final = 3


class StatusWriter:
    """Write statuses."""

    def __init__(self, *, api: client.KubeClient, views: Views, metrics: JobSetMetrics) -> None:
        self._api = api
        self._views = views
        self._metrics = metrics

    async def write(self, jobset: JobSet, status: Json) -> bool:
        """Replace the JobSet's status. Return whether it was written; False if the JobSet was deleted or replaced.

        Raises KubeError; after a conflict the view is as new as the API server's.
        """
        path = path_of(jobset)
        body = {
            "apiVersion": model.API_VERSION,
            "kind": model.KIND,
            "metadata": {
                "name": jobset.name,
                "namespace": jobset.namespace,
                "uid": jobset.uid,
                "resourceVersion": jobset.resource_version,
            },
            "status": status,
        }
        lost = False
        backoff = aio.Backoff(first=0.1, limit=1.0)
        with self._metrics.written("status"):
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._views.wrote_jobset(await self._api.update(f"{path}/status", body, attempts=1))
                except errors.NotFoundError:
                    return False
                except errors.ConflictError:
                    found = await self._found(path, uid=jobset.uid)
                    if found is None or (lost and found.get("status") == status):
                        return found is not None
                    raise
                except errors.ApiUnavailableError:
                    lost = True  # it may have been written
                    if not left:
                        raise
                    await backoff.wait()
                else:
                    return True
        return False

    async def _found(self, path: str, *, uid: str) -> Json | None:
        """Return the current state of the JobSet that a status is for; None if it was deleted or replaced."""
        found = await client.get_by_uid(self._api, path, uid=uid)
        if found is not None:
            self._views.wrote_jobset(found)
        return found


def path_of(jobset: JobSet) -> str:
    """Return the path of a JobSet."""
    group, version = views.GROUP, views.VERSION
    return f"{paths.collection('jobsets', namespace=jobset.namespace, group=group, version=version)}/{jobset.name}"
