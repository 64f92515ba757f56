"""Apply kubemend's published manifests to a dev cluster, without the workloads: those run as processes there."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from kubemend.common import aio
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

_DAEMONSET: Final = Path(__file__).resolve().parents[2] / "daemonset"
_PARTS: Final = ("base", "crds", "controller", "admission")
_PLURALS: Final[Mapping[str, str]] = {
    "Namespace": "namespaces",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}

Json = dict[str, Any]


async def apply(api: kube.KubeClient) -> None:
    """Create the namespace, definitions, accounts, rights and admission policies; existing ones stay as they are."""
    namespace, *others = _objects()
    await _create(api, namespace)
    await aio.side_by_side(*(_create(api, each) for each in others))


async def _create(api: kube.KubeClient, wanted: Json) -> None:
    group, _, version = wanted["apiVersion"].rpartition("/")
    namespace = wanted["metadata"].get("namespace")
    path = paths.collection(_PLURALS[wanted["kind"]], namespace=namespace, group=group, version=version)
    with contextlib.suppress(errors.ConflictError):
        await api.create(path, wanted)


@functools.cache
def _objects() -> Sequence[Json]:
    """Return the objects, the namespace first."""
    files = [path for part in _PARTS for path in sorted((_DAEMONSET / part).glob("*.yaml"))]
    documents = [each for path in files for each in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if each]
    return sorted(
        (each for each in documents if each["kind"] in _PLURALS), key=lambda each: each["kind"] != "Namespace"
    )
