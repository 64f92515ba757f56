"""Put one of kubemend's policy components into force on a dev cluster."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import yaml

from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import eventually
from tests.unit.daemonset import manifests

COMPONENTS: Final = manifests.DAEMONSET / "components"
_PLURALS: Final = {"Policy": "policies", "PolicyBinding": "policybindings"}


@contextlib.asynccontextmanager
async def in_force(api: kube.KubeClient, component: str, *, asked: dict[str, Any], volume: str) -> AsyncIterator[None]:
    """Have a component's policies for the length of the block; pods like ``asked`` get the ``volume`` from them."""

    async def changes_pods() -> bool:
        made = await api.create(f"{paths.collection('pods', namespace='default')}?dryRun=All", asked)
        return any(each["name"] == volume for each in made["spec"]["volumes"])

    async with contextlib.AsyncExitStack() as applied:
        for made in yaml.safe_load_all((COMPONENTS / component / "policy.yaml").read_text()):
            kind, _, suffix = made["kind"].partition("Admission")
            collection = paths.collection(
                f"{kind.lower()}admission{_PLURALS[suffix]}", group="admissionregistration.k8s.io"
            )
            await api.create(collection, made)
            applied.push_async_callback(api.delete, f"{collection}/{made['metadata']['name']}", options={})
        await eventually.true(changes_pods, look_again=0.2)
        yield
