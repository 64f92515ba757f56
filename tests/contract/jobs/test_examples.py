"""The examples on a real API server: accepted unchanged, by the schema with its rules, and by the policy."""

from pathlib import Path

import pytest
import yaml

from hack.devnode import apiserver, patience
from kubemend.common.kube import client
from tests.contract.api import jobsets

EXAMPLES = {
    path.stem: next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "JobSet")
    for path in (Path(__file__).parents[3] / "examples").glob("*.yaml")
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
async def test_example_is_accepted(server: apiserver.KubeApiServer, name: str) -> None:
    written = EXAMPLES[name]
    async with client.connect(kubeconfig=server.kubeconfig, deadlines=patience.API) as api:
        await jobsets.install(api)
        await jobsets.install_policy(api)
        made = await api.create(jobsets.collection("default"), written)
        assert made["spec"]["failurePolicy"]["restartStrategy"] == "InPlaceRestart"
        await api.delete(f"{jobsets.collection('default')}/{made['metadata']['name']}")
