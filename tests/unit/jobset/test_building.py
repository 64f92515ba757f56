"""The bodies of Jobs: every label, annotation and field that upstream sets, and kubemend's own."""

import copy
from typing import Any

import pytest

from kubemend.common import cache_volume
from kubemend.controller.jobset import children
from kubemend.controller.jobset.children import caches, naming
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import JobSet
from tests.unit.jobset.manifests import jobset, replicated

P = "jobset.sigs.k8s.io/"
IN_PLACE = {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
BY_SELECTOR = {**EXCLUSIVE, "alpha.jobset.sigs.k8s.io/node-selector": "true"}
GATE = {"name": "kubemend.io/exclusive-placement"}


def made(owner: JobSet, name: str = "w", index: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the body of one Job, copied so that a test may modify it."""
    one = next(each for each in owner.spec.replicated_jobs if each.name == name)
    return copy.deepcopy(children.job(owner, one, index, **{"attempt": 0, **fields}))


def pods_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return its pods' spec."""
    spec: dict[str, Any] = body["spec"]["template"]["spec"]
    return spec


def metadata_of(body: dict[str, Any], kind: str) -> list[dict[str, str]]:
    """Return the labels or annotations of a Job and of its pods."""
    return [body["metadata"].get(kind, {}), body["spec"]["template"]["metadata"].get(kind, {})]


def test_job_and_pods_have_upstreams_labels() -> None:
    owner = jobset(
        replicated("a", replicas=2, groupName="one"),
        replicated("b", replicas=4, groupName="two"),
        replicated("c", replicas=3, groupName="one"),
    )
    expected = {
        P + "jobset-name": "train",
        P + "jobset-uid": "0b7e55ab-uid",
        P + "replicatedjob-name": "c",
        P + "restart-attempt": "5",
        P + "replicatedjob-replicas": "3",
        P + "global-replicas": "9",
        P + "job-index": "1",
        P + "job-key": "e1b008f28101280e00a58ddd4639e44aa4517677",
        P + "job-global-index": "7",
        P + "group-name": "one",
        P + "group-replicas": "5",
        P + "job-group-index": "3",
    }
    body = made(owner, "c", 1, attempt=5)
    assert body["metadata"]["name"] == "train-c-1"
    assert metadata_of(body, "labels") == [expected, expected]
    noted = {naming.MADE_OF: body["metadata"]["annotations"][naming.MADE_OF]}
    assert metadata_of(body, "annotations") == [{**expected, **noted}, expected]


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_coordinator_is_on_jobs_and_pods(kind: str) -> None:
    body = made(jobset(coordinator={"replicatedJob": "w", "podIndex": 3}))
    assert [each[P + "coordinator"] for each in metadata_of(body, kind)] == ["train-w-0-3.train"] * 2


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_own_restarts_of_job_are_labelled_if_counted(kind: str) -> None:
    counted, uncounted = made(jobset(), job_attempt=2), made(jobset())
    assert [each[P + "job-restart-attempt"] for each in metadata_of(counted, kind)] == ["2", "2"]
    assert all(P + "job-restart-attempt" not in each for each in metadata_of(uncounted, kind))


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_template_labels_stay_and_jobset_labels_override(kind: str) -> None:
    theirs = {"team": "ml", P + "job-index": "77"}
    one = replicated(
        template={"metadata": {kind: {**theirs, "of": "job"}}}, pod_metadata={kind: {**theirs, "of": "pod"}}
    )
    job, pod = metadata_of(made(jobset(one)), kind)
    assert (job["team"], job["of"], job[P + "job-index"]) == ("ml", "job", "0")
    assert (pod["team"], pod["of"], pod[P + "job-index"]) == ("ml", "pod", "0")


def test_job_is_owned_by_its_jobset() -> None:
    body = made(jobset())
    assert (body["apiVersion"], body["kind"], body["metadata"]["namespace"]) == ("batch/v1", "Job", "ml")
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": model.API_VERSION,
            "kind": "JobSet",
            "name": "train",
            "uid": "0b7e55ab-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_spec_is_passed_on_as_written() -> None:
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    job = {"parallelism": 2, "completions": 2, "backoffLimitPerIndex": 1, "podFailurePolicy": policy}
    body = made(jobset(replicated(job=job, pods={"hostNetwork": True})))
    assert {name: body["spec"][name] for name in job} == job
    assert pods_of(body)["hostNetwork"] is True
    assert pods_of(body)["containers"] == [{"name": "main", "image": "train:1"}]


@pytest.mark.parametrize(
    ("job", "pods", "mode", "policy"),
    [
        ({}, {}, "Indexed", "OnFailure"),
        ({"completionMode": "NonIndexed"}, {"restartPolicy": "Never"}, "NonIndexed", "Never"),
    ],
)
def test_defaults_apply_without_overriding(job: dict[str, Any], pods: dict[str, Any], mode: str, policy: str) -> None:
    body = made(jobset(replicated(job=job, pods=pods)))
    assert (body["spec"]["completionMode"], pods_of(body)["restartPolicy"]) == (mode, policy)


@pytest.mark.parametrize(("spec", "suspended"), [({}, False), ({"suspend": False}, False), ({"suspend": True}, True)])
def test_suspend_is_always_set(spec: dict[str, Any], suspended: bool) -> None:
    template = replicated(job={"suspend": not suspended})
    assert made(jobset(template, **spec))["spec"]["suspend"] is suspended


@pytest.mark.parametrize(
    ("network", "subdomain"),
    [(None, "train"), ({"subdomain": "net"}, "net"), ({"enableDNSHostnames": False, "subdomain": "net"}, None)],
)
def test_pods_with_hostnames_have_subdomain(network: dict[str, Any] | None, subdomain: str | None) -> None:
    body = made(jobset(network=network))
    assert pods_of(body).get("subdomain") == subdomain
    assert "hostname" not in pods_of(body), "the Job controller gives it, <job>-<index>"


class TestExclusivePlacement:
    """Annotations, the node-selector strategy, and the gate."""

    def test_exclusive_annotation_of_jobset_is_on_jobs_and_pods(self) -> None:
        body = made(jobset(annotations=EXCLUSIVE))
        assert all(EXCLUSIVE.items() <= each.items() for each in metadata_of(body, "annotations"))
        assert all(not EXCLUSIVE.keys() & each.keys() for each in metadata_of(body, "labels"))

    def test_exclusive_annotation_of_template_overrides(self) -> None:
        own = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "zone"}
        body = made(jobset(replicated(template={"metadata": {"annotations": own}}), annotations=EXCLUSIVE))
        assert all(own.items() <= each.items() for each in metadata_of(body, "annotations"))

    def test_exclusive_annotation_may_be_on_one_replicated_job(self) -> None:
        owner = jobset(replicated("a", template={"metadata": {"annotations": EXCLUSIVE}}), replicated("b"))
        assert EXCLUSIVE.keys() <= made(owner, "a")["metadata"]["annotations"].keys()
        assert not EXCLUSIVE.keys() & made(owner, "b")["metadata"]["annotations"].keys()

    def test_exclusive_pods_have_gate_and_label(self) -> None:
        theirs = {"name": "kueue.x-k8s.io/topology"}
        body = made(jobset(replicated(pods={"schedulingGates": [theirs]}), annotations=EXCLUSIVE))
        assert pods_of(body)["schedulingGates"] == [theirs, GATE]
        job, pod = metadata_of(body, "labels")
        assert pod["kubemend.io/placement"] == "exclusive"
        assert "kubemend.io/placement" not in job
        assert "nodeSelector" not in pods_of(body)

    def test_labelled_nodes_are_selected_and_tolerated(self) -> None:
        kept = {"key": "gpu", "operator": "Exists"}
        one = replicated(replicas=2, pods={"nodeSelector": {"pool": "a"}, "tolerations": [kept]})
        owner = jobset(one, annotations=BY_SELECTOR)
        body = made(owner, index=1)
        assert pods_of(body)["nodeSelector"] == {
            "pool": "a",
            "alpha.jobset.sigs.k8s.io/namespaced-job": "ml_train-w-1",
        }
        no_schedule = {"key": "alpha.jobset.sigs.k8s.io/no-schedule", "operator": "Exists", "effect": "NoSchedule"}
        assert pods_of(body)["tolerations"] == [kept, no_schedule]
        assert "schedulingGates" not in pods_of(body)
        assert "kubemend.io/placement" not in body["spec"]["template"]["metadata"]["labels"]
        assert all(BY_SELECTOR.items() <= each.items() for each in metadata_of(body, "annotations"))

    def test_template_can_select_strategy_for_jobsets_topology(self) -> None:
        strategy = {"alpha.jobset.sigs.k8s.io/node-selector": "true"}
        body = made(jobset(replicated(template={"metadata": {"annotations": strategy}}), annotations=EXCLUSIVE))
        assert pods_of(body)["nodeSelector"] == {"alpha.jobset.sigs.k8s.io/namespaced-job": "ml_train-w-0"}
        assert "schedulingGates" not in pods_of(body)

    def test_strategy_alone_has_no_effect(self) -> None:
        strategy = {"alpha.jobset.sigs.k8s.io/node-selector": "true"}
        body = made(jobset(annotations=strategy))
        assert all(not strategy.keys() & each.keys() for each in metadata_of(body, "annotations"))
        assert "nodeSelector" not in pods_of(body)

    def test_pods_without_annotation_have_no_gate(self) -> None:
        assert "schedulingGates" not in pods_of(made(jobset()))


class TestInPlace:
    """The annotation of pods of a JobSet with InPlaceRestart."""

    def test_in_place_pods_opt_in_for_rounds(self) -> None:
        job, pod = metadata_of(made(jobset(failurePolicy=IN_PLACE)), "annotations")
        assert pod["kubemend.io/restart"] == "InPlace"
        assert "kubemend.io/restart" not in job

    def test_templates_own_annotation_overrides(self) -> None:
        one = replicated(pod_metadata={"annotations": {"kubemend.io/restart": "Other"}})
        _, pod = metadata_of(made(jobset(one, failurePolicy=IN_PLACE)), "annotations")
        assert pod["kubemend.io/restart"] == "Other"

    @pytest.mark.parametrize("policy", [None, {"maxRestarts": 3}, {"restartStrategy": "BlockingRecreate"}])
    def test_other_strategies_do_not_opt_in(self, policy: dict[str, Any] | None) -> None:
        body = made(jobset(failurePolicy=policy))
        assert all("kubemend.io/restart" not in each for each in metadata_of(body, "annotations"))

    def test_pods_get_nothing_else(self) -> None:
        plain, in_place = made(jobset()), made(jobset(failurePolicy=IN_PLACE))
        assert pods_of(in_place) == pods_of(plain)


def test_job_has_annotation_with_template_hashes() -> None:
    owner = jobset()
    noted = made(owner)["metadata"]["annotations"]["kubemend.io/made-of"]
    assert noted == str(template_changes.made_of(owner.spec.replicated_jobs[0]))


def test_jobset_is_not_modified() -> None:
    claims = [{"templates": [{"metadata": {"name": "data"}, "spec": {}}]}]
    mounts = [{"name": "main", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
    one = replicated(pods={"containers": mounts, "volumes": [], "schedulingGates": [], "nodeSelector": {}})
    for annotations in (EXCLUSIVE, BY_SELECTOR):
        owner = jobset(one, annotations=annotations, failurePolicy=IN_PLACE, volumeClaimPolicies=claims)
        before = repr(owner)
        children.JobBuilder(owner, owner.spec.replicated_jobs[0], attempt=1).job(0)
        assert repr(owner) == before


def test_job_builder_equals_single_jobs() -> None:
    owner = jobset(replicated("a", replicas=2), replicated("b", replicas=3), annotations=BY_SELECTOR)
    for one in owner.spec.replicated_jobs:
        builder = children.JobBuilder(owner, one, attempt=4)
        for index in range(one.replicas):
            assert builder.job(index, job_attempt=1) == children.job(owner, one, index, attempt=4, job_attempt=1)


def test_common_parts_are_shared() -> None:
    owner = jobset(replicated(replicas=2), annotations=EXCLUSIVE)
    builder = children.JobBuilder(owner, owner.spec.replicated_jobs[0], attempt=0)
    one, other = builder.job(0), builder.job(1)
    assert pods_of(one) is pods_of(other)
    assert one["metadata"]["ownerReferences"] is other["metadata"]["ownerReferences"]


def test_pods_that_ask_for_a_cache_get_it_and_the_template_stays_as_it_is() -> None:
    annotations = {"kubemend.io/cache": "On", "kubemend.io/cache-size": "50Gi"}
    owner = jobset(replicated("w", pod_metadata={"annotations": annotations}), failurePolicy=IN_PLACE)
    template = copy.deepcopy(owner.spec.replicated_jobs[0].pod_template)
    spec = pods_of(made(owner))
    assert spec["volumes"][-1] == {"name": "kubemend-cache", "emptyDir": {"sizeLimit": "50Gi"}}
    (container,) = spec["containers"]
    assert container["volumeMounts"][-1] == {"name": "kubemend-cache", "mountPath": "/var/cache/kubemend"}
    assert {each["name"]: each["value"] for each in container["env"]} == {
        name: f"/var/cache/kubemend/{container['name']}/{directory}"
        for name, directory in cache_volume.DIRECTORIES.items()
    }
    assert owner.spec.replicated_jobs[0].pod_template == template


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [({}, IN_PLACE), ({"kubemend.io/cache": "Off"}, IN_PLACE), ({"kubemend.io/cache": "On"}, {})],
    ids=["not asked for", "off", "not restarted in place"],
)
def test_other_pods_get_no_cache(annotations: dict[str, str], policy: dict[str, Any]) -> None:
    owner = jobset(replicated("w", pod_metadata={"annotations": annotations}), failurePolicy=policy)
    spec = pods_of(made(owner))
    assert "volumes" not in spec
    assert spec["containers"][0].keys().isdisjoint({"env", "volumeMounts"})


def test_size_that_the_api_would_refuse_is_no_limit() -> None:
    annotations = {"kubemend.io/restart": "InPlace", caches.CACHE: "On", caches.CACHE_SIZE: "-1Gi"}
    assert caches.with_cache({}, annotations)["volumes"] == [{"name": "kubemend-cache", "emptyDir": {}}]
