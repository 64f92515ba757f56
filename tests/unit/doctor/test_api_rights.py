"""Which rights are missing: asked of the API, never guessed from a failed call."""

from collections.abc import Collection
from typing import Any

import pytest

from agent.doctor import api_rights
from agent.doctor.checks import Result
from common.kube import client as kube
from common.kube import errors
from hack.devnode.api import standin


class Reviewer:
    """An API server that allows all but ``refused``, written as (verb, resource); it may lack LeaderWorkerSets."""

    def __init__(self, *refused: tuple[str, str], has_groups: bool = True) -> None:
        self.refused: Collection[tuple[str, str]] = refused
        self.has_groups = has_groups
        self.asked: list[dict[str, Any]] = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Review a right."""
        assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        wanted = body["spec"]["resourceAttributes"]
        self.asked.append(wanted)
        return {**body, "status": {"allowed": (wanted["verb"], wanted["resource"]) not in self.refused}}

    async def get(self, path: str) -> dict[str, Any]:
        """Discover."""
        if not self.has_groups:
            raise errors.NotFoundError(f"no {path}")
        return {}


async def test_rights_that_are_there_are_named(api: kube.KubeClient) -> None:
    (check,) = await api_rights.needed(api)

    assert check.result is Result.OK
    assert check.what == "allowed: get pods, list pods, watch pods, patch pods/status, get jobs.batch"


async def test_missing_rights_are_named_and_no_others() -> None:
    (check,) = await api_rights.needed(Reviewer(("patch", "pods"), ("get", "jobs")))

    assert check.result is Result.FAIL
    assert check.what == "not allowed: patch pods/status, get jobs.batch"
    assert "ClusterRole" in check.mend


async def test_a_subresource_is_asked_for_as_one() -> None:
    reviewer = Reviewer()
    await api_rights.needed(reviewer)

    assert {"verb": "patch", "group": "", "resource": "pods", "subresource": "status"} in reviewer.asked


@pytest.mark.parametrize(
    "question", [api_rights.needed, api_rights.for_node, api_rights.for_groups, api_rights.for_training]
)
@pytest.mark.parametrize("status", [403, 401])
async def test_a_server_that_does_not_review_leaves_it_unknown(
    server: standin.StandIn, api: kube.KubeClient, question: Any, status: int
) -> None:
    server.handler.faults.fail_next(100, status=status)

    (check,) = await question(api)

    assert check.result is Result.UNKNOWN
    assert check.mend


async def test_a_node_that_may_not_be_told_of_is_a_warning_only() -> None:
    (check,) = await api_rights.for_node(Reviewer(("patch", "nodes"), ("create", "events")))

    assert check.result is Result.WARN
    assert check.what.startswith("not allowed: patch nodes/status, create events; ")


async def test_a_node_that_may_be_told_of_is_well() -> None:
    (check,) = await api_rights.for_node(Reviewer())

    assert check.result is Result.OK


async def test_leader_worker_sets_that_may_not_be_read_are_a_warning_only() -> None:
    (check,) = await api_rights.for_groups(Reviewer(("get", "leaderworkersets")))

    assert check.result is Result.WARN
    assert "leaderworkersets" in check.what


async def test_a_cluster_without_leader_worker_sets_needs_no_right_to_them() -> None:
    (check,) = await api_rights.for_groups(Reviewer(("get", "leaderworkersets"), has_groups=False))

    assert check.result is Result.NOT_NEEDED


async def test_kubeflows_jobs_that_may_not_be_read_are_a_warning_where_there_are_any() -> None:
    (check,) = await api_rights.for_training(Reviewer(("get", "pytorchjobs")))
    assert check.result is Result.WARN
    assert "pytorchjobs" in check.what
    (check,) = await api_rights.for_training(Reviewer(("get", "pytorchjobs"), has_groups=False))
    assert check.result is Result.NOT_NEEDED


async def test_leader_worker_sets_that_may_be_read_are_well() -> None:
    (check,) = await api_rights.for_groups(Reviewer())

    assert check.result is Result.OK
