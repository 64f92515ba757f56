"""Run a JobSet that trains: one driver and some workers, two replicated Jobs of different templates.

The workers are those of ``workload``, and the driver ends after them. The driver also detects a lost peer: its
collective times out, when the test triggers it, and it exits with 1.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from hack.devnode import jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.controller.jobset.children import naming
from tests.devnode.workload import BEGIN, CHECKPOINT, SHARED, WORKER, Workload, apart

DRIVER = "driver-0-0"

COORDINATE = f"""{BEGIN}
while [ "$(ls {SHARED} | grep -c 'done$')" -lt "$WORKERS" ]; do
  if [ -e {SHARED}/peer-lost ]; then rm {SHARED}/peer-lost; echo "a collective timed out"; exit 1; fi
  step=$((step + 1))
  {CHECKPOINT}
  sleep 0.1
done
echo "all $WORKERS workers are done"
"""

Json = dict[str, Any]


class Training(Workload):
    """Manage one such JobSet; create it with ``Training.on``.

    Members are named as their hosts, without the JobSet's name.
    """

    def __init__(self, cluster: Cluster, api: kube.KubeClient, name: str, *, workers: int) -> None:
        super().__init__(cluster, api, cluster.first.layout.root / "jobsets" / name)
        self.name = name
        self.gang = gangs.GangKey(NAMESPACE, "JobSet", name)
        self._count = workers

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, cluster: Cluster, api: kube.KubeClient, name: str, *, workers: int = 3) -> AsyncIterator[Self]:
        """Run it for the length of the block; yields it when all members train."""
        made = cls(cluster, api, name, workers=workers)
        made._shared.mkdir(parents=True)
        try:
            await api.create(jobsets.JOBSETS, made.manifest())
            await made.trains()
            yield made
        finally:
            await jobsets.delete(api, name)

    def manifest(self) -> Json:
        """Return the JobSet, as a user would write it."""
        driver = self._pod(COORDINATE, {"WORKERS": str(len(self.workers))})
        worker = self._pod(WORKER, {}, gpus=1)
        return jobsets.jobset(
            self.name,
            {"name": "driver", "replicas": 1, "template": jobsets.job(members=1, pod=driver)},
            {"name": "workers", "replicas": 1, "template": jobsets.job(members=len(self.workers), pod=worker)},
            max_restarts=10,
            coordinator={"replicatedJob": "driver"},
        )

    # --- its observable state

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the names of the workers."""
        return tuple(f"workers-0-{index}" for index in range(self._count))

    @property
    def members(self) -> tuple[str, ...]:
        """Return the driver's name, and the workers'."""
        return (DRIVER, *self.workers)

    def host(self, member: str) -> str:
        """Return the host name of a member's pod."""
        return f"{self.name}-{member}"

    async def status(self) -> Any:
        """Return the JobSet's status."""
        return (await self.jobset()).get("status")

    async def jobset(self) -> Json:
        """Return the JobSet."""
        return await self._api.get(f"{jobsets.JOBSETS}/{self.name}")

    async def condition(self, kind: str) -> Json:
        """Return a condition of the JobSet; empty if it has none of that type."""
        conditions = ((await self.jobset()).get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    async def pods(self) -> Mapping[str, Json]:
        """Return the current pod of each member."""
        found = (await self._api.list(jobsets.PODS, params=jobsets.of(self.name))).items
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        alive = [each for each in alive if (each.get("status") or {}).get("phase") != "Failed"]
        return {each["spec"]["hostname"].removeprefix(f"{self.name}-"): each for each in alive}

    # --- actions on it

    def lose_peer(self) -> None:
        """Have the driver's collective time out."""
        (self._shared / "peer-lost").touch()

    def _pod(self, script: str, environment: Mapping[str, str], *, gpus: int = 0) -> Json:
        spec = self.pod_spec(self.container(script, environment, gpus=gpus))
        labels = {gangs.JOBSET_NAME: self.name, naming.REPLICATED_JOB_NAME: "workers"}
        return {"spec": {**(apart(labels) if gpus else {}), **spec}}
