"""The examples on an API server: taken as they are, by the schema with its rules, and by the policy where one is."""

from pathlib import Path

import pytest
import yaml

from common.kube import client
from hack.devnode import realkube
from hack.devnode.api import ApiServer
from tests.contract.api import jobsets

EXAMPLES = {
    path.stem: next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "JobSet")
    for path in (Path(__file__).parents[3] / "examples").glob("*.yaml")
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
async def test_an_example_is_taken(server: ApiServer, name: str) -> None:
    written = EXAMPLES[name]
    async with client.connect(kubeconfig=server.kubeconfig) as api:
        await jobsets.install(api)
        if isinstance(server, realkube.RealKube):
            await jobsets.install_policy(api)
        made = await api.create(jobsets.collection("default"), written)
        assert made["spec"]["failurePolicy"]["restartStrategy"] == "InPlaceRestart"
        await api.delete(f"{jobsets.collection('default')}/{made['metadata']['name']}")
