"""Missing rights are reviewed through the API, never guessed from a failed call."""

from collections.abc import Collection
from typing import Any

import pytest

from kubemend.agent.doctor import api_rights
from kubemend.agent.doctor.checks import Result
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors
from tests.control_plane import Tenant


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


async def test_granted_rights_are_listed(api: kube.KubeClient) -> None:
    (check,) = await api_rights.needed(api)

    assert check.result is Result.OK
    assert check.what == "allowed: get pods, list pods, watch pods, patch pods/status, get jobs.batch"


async def test_only_missing_rights_are_listed() -> None:
    (check,) = await api_rights.needed(Reviewer(("patch", "pods"), ("get", "jobs")))

    assert check.result is Result.FAIL
    assert check.what == "not allowed: patch pods/status, get jobs.batch"
    assert "ClusterRole" in check.hint


async def test_subresource_is_reviewed_as_subresource() -> None:
    reviewer = Reviewer()
    await api_rights.needed(reviewer)

    assert {"verb": "patch", "group": "", "resource": "pods", "subresource": "status"} in reviewer.asked


@pytest.mark.parametrize(
    "question", [api_rights.needed, api_rights.for_node, api_rights.for_groups, api_rights.for_training]
)
@pytest.mark.parametrize("status", [403, 401])
async def test_server_without_reviews_gives_unknown(
    tenant: Tenant, api: kube.KubeClient, question: Any, status: int
) -> None:
    tenant.server.fail_next(100, status=status)

    (check,) = await question(api)

    assert check.result is Result.UNKNOWN
    assert check.hint


async def test_missing_node_rights_are_only_a_warning() -> None:
    (check,) = await api_rights.for_node(Reviewer(("patch", "nodes"), ("create", "events")))

    assert check.result is Result.WARN
    assert check.what.startswith("not allowed: patch nodes/status, create events; ")


async def test_granted_node_rights_are_ok() -> None:
    (check,) = await api_rights.for_node(Reviewer())

    assert check.result is Result.OK


async def test_missing_leaderworkerset_right_is_only_a_warning() -> None:
    (check,) = await api_rights.for_groups(Reviewer(("get", "leaderworkersets")))

    assert check.result is Result.WARN
    assert "leaderworkersets" in check.what


async def test_cluster_without_leaderworkersets_needs_no_right() -> None:
    (check,) = await api_rights.for_groups(Reviewer(("get", "leaderworkersets"), has_groups=False))

    assert check.result is Result.NOT_NEEDED


async def test_missing_kubeflow_rights_are_a_warning_if_kubeflow_is_installed() -> None:
    (check,) = await api_rights.for_training(Reviewer(("get", "pytorchjobs")))
    assert check.result is Result.WARN
    assert "pytorchjobs" in check.what
    (check,) = await api_rights.for_training(Reviewer(("get", "pytorchjobs"), has_groups=False))
    assert check.result is Result.NOT_NEEDED


async def test_granted_leaderworkerset_right_is_ok() -> None:
    (check,) = await api_rights.for_groups(Reviewer())

    assert check.result is Result.OK
