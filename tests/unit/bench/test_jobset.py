"""The benchmark of JobSets: what it counts, and what it says of growth."""

import contextlib
from pathlib import Path

from bench.jobset import cluster, sizes
from common.kube import client, paths
from hack.devnode import jobsets


def _figures(jobs: int, *, look: float, restart: list[int]) -> dict[str, object]:
    return {"jobs": jobs, "look_ms": {"p50": look}, "api_calls_per_look": 0.0, "api_calls_per_restart": restart}


def test_growth_is_what_the_largest_takes_over_what_the_smallest_takes() -> None:
    small, large = _figures(10, look=0.5, restart=[5, 6, 5]), _figures(1000, look=10.0, restart=[6, 6, 7])
    assert sizes.growth(small, large) == {
        "jobs": 100,
        "look": 20.0,
        "api_calls_per_look": 0.0,
        "api_calls_per_restart": 1.2,
    }


async def test_calls_are_counted_by_what_they_ask_for_and_watches_are_not(tmp_path: Path) -> None:
    async with cluster.running(tmp_path, jobs=2) as api, client.connect(kubeconfig=api.kubeconfig) as connected:
        before = api.calls
        api.create_jobset()  # not by way of the server
        path = f"{jobsets.JOBSETS}/{cluster.NAME}"
        body = await connected.get(path)
        await connected.update(f"{path}/status", {**body, "status": {"restarts": 1}})
        await connected.list(paths.NODES)
        await connected.list(paths.collection("leases", namespace="kubemend", group="coordination.k8s.io"))
        async with contextlib.aclosing(connected.watch(paths.NODES)) as seen:
            assert (await anext(seen)).object["kind"] == "Node"
        assert api.calls - before == {"GET jobsets": 1, "PUT jobsets/status": 1, "GET nodes": 1}
        assert api.status() == {"restarts": 1}


async def test_what_is_waited_for_is_looked_at_after_each_answer(tmp_path: Path) -> None:
    async with cluster.running(tmp_path, jobs=1) as api, client.connect(kubeconfig=api.kubeconfig) as connected:
        await connected.list(paths.NODES)
        await api.until(lambda: api.calls["GET nodes"] == 1)
        assert api.ended_rounds() == 0
