"""The benchmark of JobSets: its counts and its growth."""

import contextlib
from pathlib import Path

import pytest

from bench.jobset import cluster, sizes
from hack.devnode import jobsets
from kubemend.common.kube import client, paths


def _figures(jobs: int, *, look: float, restart: list[int]) -> dict[str, object]:
    return {"jobs": jobs, "look_ms": {"p50": look}, "api_calls_per_look": 0.0, "api_calls_per_restart": restart}


def test_growth_is_the_cost_of_the_largest_over_the_smallest() -> None:
    small, large = _figures(10, look=0.5, restart=[5, 6, 5]), _figures(1000, look=10.0, restart=[6, 6, 7])
    assert sizes.growth(small, large) == {
        "jobs": 100,
        "look": 20.0,
        "api_calls_per_look": 0.0,
        "api_calls_per_restart": 1.2,
    }


@pytest.mark.kubernetes
async def test_calls_are_counted_by_kind_without_watches(tmp_path: Path) -> None:
    async with cluster.running(tmp_path, jobs=2) as api, client.connect(kubeconfig=api.kubeconfig) as controller:
        before = api.calls
        await api.create_jobset()  # not through the proxy
        path = f"{jobsets.JOBSETS}/{cluster.NAME}"
        body = await controller.get(path)
        status = {"restarts": 1, "restartsCountTowardsMax": 0}
        await controller.update(f"{path}/status", {**body, "status": status})
        await controller.list(paths.NODES)
        await controller.list(paths.collection("leases", namespace="kubemend", group="coordination.k8s.io"))
        async with contextlib.aclosing(controller.watch(paths.NODES)) as seen:
            assert (await anext(seen)).object["kind"] == "Node"
        assert api.calls - before == {"GET jobsets": 1, "PUT jobsets/status": 1, "GET nodes": 1}
        assert (await api.status())["restarts"] == 1
        assert await api.ended_rounds() == 0
