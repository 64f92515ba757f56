"""The ClusterRole allows the requests of agent and doctor, and nothing else."""

from typing import Any

from kubemend.agent.doctor import api_rights, kubernetes_api
from kubemend.agent.doctor.api_rights import Right
from kubemend.common.kube import errors, paths
from tests.unit.daemonset import manifests, roles

EVERYBODY = {Right("create", "selfsubjectaccessreviews", group="authorization.k8s.io")}
"""Rights of every account (system:basic-user)."""


class Recorder:
    """An API server without objects that records the requests."""

    def __init__(self) -> None:
        self.asked: set[Right] = set()

    async def get(self, path: str) -> dict[str, Any]:
        """Record the request."""
        self._note("GET", path)
        raise errors.NotFoundError(path)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Record the request."""
        self._note("POST", path)
        return body

    def _note(self, method: str, path: str) -> None:
        target = paths.describe(method, path)
        if not target.resource.startswith("/"):  # versions and groups, which every account may read
            self.asked.add(Right(target.verb, target.resource, target.group, target.subresource))


async def doctors_own() -> set[Right]:
    """Return doctor's requests to the API server."""
    api = Recorder()
    await kubernetes_api.server(api)
    await kubernetes_api.node(api, name="node-1")
    await api_rights.needed(api)
    await api_rights.for_node(api)
    await api_rights.for_groups(api)
    await api_rights.for_training(api)
    return api.asked - EVERYBODY


async def test_the_role_allows_exactly_the_needed_calls() -> None:
    assert Right("get", "nodes") in await doctors_own()
    allowed = roles.rights(manifests.one("ClusterRole"))
    for_owners = {api_rights.FOR_GROUPS, *api_rights.FOR_TRAINING}
    assert allowed == {*api_rights.NEEDED, *api_rights.FOR_NODE} | for_owners | await doctors_own()


def test_the_role_is_bound_to_the_account_of_the_pods() -> None:
    binding, account = manifests.one("ClusterRoleBinding"), manifests.one("ServiceAccount")
    assert binding["roleRef"]["name"] == manifests.one("ClusterRole")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert manifests.identity(account) == (subject["kind"], subject["namespace"], subject["name"])
    assert manifests.pod()["serviceAccountName"] == account["metadata"]["name"]
    assert manifests.pod()["automountServiceAccountToken"] is True
