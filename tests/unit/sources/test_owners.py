"""How owners react to restarts: queried when there is time, cached in advance for gangs."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubemend.agent.model.workloads import OwnerRef, PodRef, PodUid, PodView, RestartPolicy
from kubemend.agent.restart import admission
from kubemend.agent.sources import owners as lookup
from kubemend.agent.sources.owners import OwnerLookup
from kubemend.common import contained, gangs
from kubemend.common.contained import Part
from kubemend.common.kube import client, errors
from tests import eventually
from tests.fakes import outside


@dataclass
class Api:
    """A Job and its pods. ``hangs``: no call is answered any more. ``answers``: other answers by path."""

    limit: int = admission.UNLIMITED_BACKOFF
    counts: tuple[int, ...] = (0, 0)
    hangs: bool = False
    fails: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    items: Sequence[Any] | None = None
    asked: list[str] = field(default_factory=list)
    listed: list[dict[str, str] | None] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    async def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.fails:
            raise errors.ApiUnavailableError("the API server is away", hint="wait")
        answer: dict[str, Any] = self.answers.get(path, {"spec": {"backoffLimit": self.limit}})
        return answer

    async def pages(
        self, path: str, *, params: dict[str, str] | None = None, project: Callable[[dict[str, Any]], Any]
    ) -> AsyncGenerator[client.Listing, None]:
        """Yield one pod on each page."""
        self.listed.append(params)
        statuses = [{"containerStatuses": [{"restartCount": count}]} for count in self.counts]
        pods = [{"status": {"phase": "Running", **status}, "spec": "large"} for status in statuses]
        for pod in self.items if self.items is not None else pods:
            await asyncio.sleep(0)
            self.kept.append(project(pod))
            yield client.Listing([self.kept[-1]], "")


def member(**changes: Any) -> PodView:
    defaults: dict[str, Any] = {
        "ref": PodRef("default", "j-0", PodUid("uid-1")),
        "phase": "Running",
        "restart_policy": RestartPolicy.ON_FAILURE,
        "containers": (),
        "labels": {"kubemend.io/gang": "g"},
        "owner": OwnerRef(api_group="batch", kind="Job", name="j"),
    }
    return PodView(**defaults | changes)


def members(count: int) -> tuple[PodView, ...]:
    return tuple(member(ref=PodRef("default", f"j-{i}", PodUid(f"uid-{i}"))) for i in range(count))


def owned_by(name: str) -> PodView:
    return member(owner=OwnerRef(api_group="batch", kind="Job", name=name))


async def test_round_uses_prefetched_facts_without_the_api_server() -> None:
    api, pods = Api(), outside.Pods()
    owners = OwnerLookup(api)
    running = asyncio.create_task(owners.run(pods))
    await asyncio.sleep(0)
    await pods.put(member())
    await eventually.true(lambda: len(api.asked) == 1)
    api.hangs = True
    answer = await owners.facts(member(), at_once=True)
    assert answer is not None
    assert answer.job_restarts_left == admission.UNLIMITED_BACKOFF
    assert len(api.asked) == 1
    running.cancel()


async def test_pods_are_counted_for_a_decision_only() -> None:
    """Otherwise each member's agent would list all the others' pods, every few minutes."""
    api, everyone = Api(limit=6), members(8)
    owners = OwnerLookup(api)
    running = asyncio.create_task(owners.run(outside.Pods(*everyone)))
    await eventually.true(lambda: len(api.asked) == len(everyone))
    assert api.listed == []
    assert await owners.facts(everyone[0], at_once=True) == admission.OwnerFacts(job_restarts_left=5, job_pods=2)
    assert api.listed == [{"labelSelector": "batch.kubernetes.io/job-name=j"}]
    running.cancel()


async def test_failed_pods_and_restarts_of_init_containers_count_too() -> None:
    job = {"spec": {"backoffLimit": 10}, "status": {"failed": 3}}
    status = {"initContainerStatuses": [{"restartCount": 2}], "containerStatuses": [{"restartCount": 1}]}
    api = Api(items=[{"status": {"phase": "Running", **status}}])
    api.answers = {"/apis/batch/v1/namespaces/default/jobs/j": job}
    assert await OwnerLookup(api).facts(member()) == admission.OwnerFacts(job_restarts_left=10 - 1 - 3 - 2 - 1)


async def test_facts_that_are_too_old_are_not_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    owners = OwnerLookup(api)
    assert await owners.facts(member(), at_once=True) is not None
    api.hangs = True
    assert await owners.facts(member(), at_once=True) is not None
    monkeypatch.setattr(lookup, "_GOOD_FOR", -1.0)
    assert await owners.facts(member(), at_once=True) is None


async def test_internal_error_on_a_pod_leaves_the_owners_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = members(2)
    matters = lookup._matters

    def fails_for_bad(pod: PodView) -> bool:
        if pod.ref == bad.ref:
            raise IndexError
        return matters(pod)

    monkeypatch.setattr(lookup, "_matters", fails_for_bad)
    before = contained.count([Part.OWNER])
    api, pods = Api(), outside.Pods(bad)
    running = asyncio.create_task(OwnerLookup(api).run(pods))
    await eventually.true(lambda: contained.count([Part.OWNER]) == before + 1)
    await pods.put(good)
    await eventually.true(lambda: len(api.asked) == 1)
    assert contained.count([Part.OWNER]) == before + 1, "not with every change of a pod"
    running.cancel()


@pytest.mark.parametrize("api", [Api(), Api(limit=6), Api(fails=True)], ids=["lasts", "does not last", "fails"])
async def test_change_of_another_pod_causes_no_query(api: Api) -> None:
    one, other = (replace(pod, owner=OwnerRef("batch", "Job", pod.ref.name)) for pod in members(2))
    pods = outside.Pods(one)
    running = asyncio.create_task(OwnerLookup(api).run(pods))
    await eventually.true(lambda: len(api.asked) == 1)
    await pods.put(other)
    await eventually.true(lambda: len(api.asked) >= 2)
    assert [path.rpartition("/")[2] for path in api.asked] == ["j-0", "j-1"]
    running.cancel()


@pytest.mark.parametrize(
    "name", ["../../../../../../version", "..", ".", "", "j/status", "j%2Fstatus", "j" * 254], ids=lambda name: name[:9]
)
async def test_invalid_owner_name_causes_no_query_and_ends_nothing(name: str) -> None:
    bad, good = owned_by(name), member(ref=PodRef("default", "good", PodUid("uid-2")))
    api, pods = Api(), outside.Pods(bad)
    owners = OwnerLookup(api)
    with capture_logs() as logs:
        running = asyncio.create_task(owners.run(pods))
        await eventually.true(lambda: bool(logs))
        assert await owners.facts(bad) is None
        assert api.asked == []
        await pods.put(good)
        await eventually.true(lambda: len(api.asked) == 1)
    assert not running.done()
    (reported,) = logs
    assert (reported["event"], reported["pod"]) == ("owner.invalid", "default/j-0")
    assert "is not the name of an object" in reported["error"]
    running.cancel()


async def test_any_other_name_is_quoted() -> None:
    api = Api()
    await OwnerLookup(api).facts(owned_by("j?x=y#z"))
    assert api.asked == ["/apis/batch/v1/namespaces/default/jobs/j%3Fx%3Dy%23z"]


@pytest.mark.parametrize(
    "answer",
    [
        {"major": "1", "minor": "36"},
        {"spec": None},
        {"spec": []},
        {"spec": {"backoffLimit": None}},
        {"spec": {"backoffLimit": "many"}},
        {"spec": {"backoffLimit": float("inf")}},
        {"spec": {}, "status": None},
    ],
    ids=str,
)
async def test_invalid_job_gives_unknown(answer: dict[str, Any]) -> None:
    owners = OwnerLookup(Api(answers={"/apis/batch/v1/namespaces/default/jobs/j": answer}))
    with capture_logs() as logs:
        assert await owners.facts(member()) is None
        assert await owners.facts(member(), at_once=True) is None
    assert [reported["event"] for reported in logs] == ["owner.invalid"]


@pytest.mark.parametrize(
    "item", [None, [], {"status": None}, {"status": {"containerStatuses": [{"restartCount": ""}]}}]
)
async def test_invalid_pods_give_unknown(item: Any) -> None:
    assert await OwnerLookup(Api(limit=6, items=[item])).facts(member()) is None


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({"leaderWorkerTemplate": {"restartPolicy": "None"}}, "None"),
        ({"leaderWorkerTemplate": {}}, "RecreateGroupOnPodRestart"),
    ],
)
async def test_leader_worker_set_gives_its_policy(spec: dict[str, Any], policy: str) -> None:
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets/l"
    pod = member(owner=None, labels={gangs.LWS_NAME: "l"})
    assert await OwnerLookup(Api(answers={path: {"spec": spec}})).facts(pod) == admission.OwnerFacts(
        group_policy=policy
    )


@pytest.mark.parametrize("name", ["", "l"])
async def test_leader_worker_set_without_name_or_spec_gives_unknown(name: str) -> None:
    path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets/{name}"
    pod = member(owner=None, labels={gangs.LWS_NAME: name})
    assert await OwnerLookup(Api(answers={path: {"items": []}})).facts(pod) is None


async def test_count_is_never_cached_and_not_awaited() -> None:
    api = Api(limit=6, counts=(1, 2))
    owners = OwnerLookup(api)
    assert await owners.facts(member()) == admission.OwnerFacts(job_restarts_left=2, job_pods=2)
    api.counts = (2, 2)
    assert await owners.facts(member(), at_once=True) == admission.OwnerFacts(job_restarts_left=1, job_pods=2)
    api.hangs = True
    assert await owners.facts(member(), at_once=True) is None


async def test_large_pods_are_reduced_to_two_numbers_while_they_are_read() -> None:
    statuses = [{"restartCount": 2, "lastState": {"terminated": {"message": "x" * 4096}}}] * 3
    pods = [{"status": {"phase": phase, "containerStatuses": statuses}} for phase in ("Running", "Failed", "Running")]
    api = Api(limit=100, items=pods)
    assert await OwnerLookup(api).facts(member()) == admission.OwnerFacts(job_restarts_left=81, job_pods=2)
    assert api.kept == [(6, 1), (6, 0), (6, 1)]


async def test_concurrent_restarts_of_an_owner_share_a_count_that_begins_after_them() -> None:
    api, everyone = Api(limit=6, counts=(0, 1)), members(8)
    owners = OwnerLookup(api)
    early = [asyncio.create_task(owners.facts(pod)) for pod in everyone[:4]]
    await eventually.true(lambda: len(api.listed) == 1)
    api.counts = (1, 1)
    late = [asyncio.create_task(owners.facts(pod)) for pod in everyone[4:]]
    other = await owners.facts(member(ref=PodRef("elsewhere", "j-0", PodUid("other"))))
    assert await asyncio.gather(*early) == [admission.OwnerFacts(job_restarts_left=4, job_pods=2)] * 4
    assert await asyncio.gather(*late) == [admission.OwnerFacts(job_restarts_left=3, job_pods=2)] * 4
    assert other == admission.OwnerFacts(job_restarts_left=3, job_pods=2)
    assert len(api.listed) == 3
    assert not owners._counts, "queries without a restart that waits are dropped"


async def test_unavailable_api_gives_unknown() -> None:
    owners = OwnerLookup(Api(fails=True))
    assert await owners.facts(member()) is None
    assert await owners.facts(member(), at_once=True) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": None},
        {"restart_policy": RestartPolicy.ALWAYS},
        {"owner": OwnerRef(api_group="nosuch.example", kind="Job", name="j")},
        {"owner": OwnerRef(api_group="batch", kind="CronJob", name="j")},
    ],
)
async def test_pod_without_such_owner_causes_no_query(changes: dict[str, Any]) -> None:
    api = Api()
    assert await OwnerLookup(api).facts(member(**changes), at_once=True) == admission.OwnerFacts()
    assert api.asked == []


async def test_facts_of_a_deleted_pod_are_dropped() -> None:
    api, pods = Api(), outside.Pods(member())
    owners = OwnerLookup(api)
    running = asyncio.create_task(owners.run(pods))
    await eventually.true(lambda: len(api.asked) == 1)
    pods.drop(PodUid("uid-1"))
    await eventually.true(lambda: owners._known == {})
    running.cancel()


TORCH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/t"


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        pytest.param({"backoffLimit": 6}, 2, id="it fails when the sum reaches the limit"),
        pytest.param({"backoffLimit": 0}, -3, id="or is more than none"),
    ],
)
async def test_kubeflow_jobs_sum_restarts(policy: dict[str, Any], left: int) -> None:
    api = Api(answers={TORCH: {"spec": {"runPolicy": policy}}}, counts=(1, 2))
    pod = member(owner=OwnerRef("kubeflow.org", "PyTorchJob", "t"), restart_policy=RestartPolicy.ALWAYS)
    assert await OwnerLookup(api).facts(pod) == admission.OwnerFacts(job_restarts_left=left, job_pods=2)
    assert api.listed == [{"labelSelector": "training.kubeflow.org/job-name=t"}]


@pytest.mark.parametrize("spec", [{}, {"runPolicy": {}}, {"runPolicy": None}, {"runPolicy": {"backoffLimit": None}}])
async def test_kubeflow_jobs_without_limit_count_nothing(spec: dict[str, Any]) -> None:
    api = Api(answers={TORCH: {"spec": spec}})
    answer = await OwnerLookup(api).facts(member(owner=OwnerRef("kubeflow.org", "PyTorchJob", "t")))
    assert answer == admission.OwnerFacts()
    assert answer.lasts
    assert api.listed == []


async def test_owner_is_read_in_the_version_of_its_reference() -> None:
    api = Api(limit=admission.UNLIMITED_BACKOFF)
    await OwnerLookup(api).facts(member(owner=OwnerRef("kubeflow.org", "PyTorchJob", "m", version="v2")))
    assert api.asked == ["/apis/kubeflow.org/v2/namespaces/default/pytorchjobs/m"]


async def test_mpi_operator_counts_no_restarts_of_workers() -> None:
    api = Api(limit=0)
    facts = await OwnerLookup(api).facts(member(owner=OwnerRef("kubeflow.org", "MPIJob", "m", version="v2beta1")))
    assert (facts, api.asked) == (admission.OwnerFacts(), [])
