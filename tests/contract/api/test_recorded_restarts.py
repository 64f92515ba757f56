"""Restart objects of earlier releases are valid for today's definition, and the controller reads them."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kubemend.common.gangs import GangKey
from kubemend.common.kube import client
from kubemend.controller.restarts import names, objects
from tests.contract.api import restarts

RECORDED: Final = sorted(Path(__file__).with_name("recorded").glob("*.yaml"))
FINISHED: Final = {"train-3-done": "Done", "train-4-failed": "Failed", "refused": "Refused"}


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
async def stored(request: pytest.FixtureRequest, api: client.KubeClient, namespace: str) -> dict[str, dict[str, Any]]:
    """The objects of a release, by name, as the API server has them; nothing is pruned."""
    await restarts.install(api)
    found = {}
    for given in yaml.safe_load_all(request.param.read_text()):
        path, status = names.collection(namespace), given.pop("status", None)
        made = await api.create(f"{path}?fieldValidation=Strict", given)
        name = made["metadata"]["name"]
        if status is not None:
            target = f"{path}/{name}/status?fieldValidation=Strict"
            made = await api.patch(target, {"status": status}, content_type=client.Patch.MERGE)
        assert (made["spec"], made.get("status")) == (given["spec"], status), name
        found[name] = made
    return found


async def test_objects_of_an_earlier_release_are_read(stored: dict[str, dict[str, Any]], namespace: str) -> None:
    read = {name: objects.parse(each) for name, each in stored.items()}
    assert {name: each.phase for name, each in read.items() if each.is_finished} == FINISHED
    begun = read["train-5-begun"]
    assert (begun.is_round, begun.is_finished, begun.attempt, begun.epoch) == (True, False, 5, 7)
    assert begun.gang == GangKey(namespace, "JobSet", "train")
    request = read["every-field"]
    assert request.is_request
    assert (request.spec.strategy, request.spec.grace_seconds, request.spec.max_unavailable_percent) == ("swap", 30, 10)


async def test_objects_of_an_earlier_release_can_be_finished_and_deleted(
    api: client.KubeClient, stored: dict[str, dict[str, Any]], namespace: str
) -> None:
    path = f"{names.collection(namespace)}/train-5-begun"
    status = objects.completed({"phase": "Done"}, generation=1, now=1_769_846_401.0)
    made = await api.patch_status(path, {"status": status}, content_type=client.Patch.MERGE)
    assert objects.parse(made).is_finished
    for name in stored:
        await api.delete(f"{names.collection(namespace)}/{name}")
