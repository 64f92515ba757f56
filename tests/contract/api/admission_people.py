"""Cases of what the policies allow people, who have an administrator's rights here."""

from typing import Any, Final

from kubemend.common.kube import client
from kubemend.controller.restarts import names
from tests.contract.api import restarts
from tests.contract.api.admission_calls import Call, Case, Json, Scene

NOT_THEIRS: Final = "kubemend-rounds' denied request: only the controller writes the annotations of a round"
IMITATED: Final = restarts.new_round("team-a").body("imitated")


def creates(body: Json, *, query: str = "") -> Call:
    """Return the creation of a Restart."""
    return lambda api, scene: api.create(f"{names.collection(scene.namespace)}{query}", body)


def changed(name: str, **metadata: Any) -> Call:
    """Return a change of the metadata of a Restart that has just been requested."""

    async def call(api: client.KubeClient, scene: Scene) -> None:
        await scene.administrator.create(names.collection(scene.namespace), restarts.restart(name))
        path = f"{names.collection(scene.namespace)}/{name}"
        await api.patch(path, {"metadata": metadata}, content_type=client.Patch.MERGE)

    return call


CASES = (
    Case("a Restart that requests a round", "person", creates(restarts.restart("please"))),
    Case("notes something on a Restart", "person", changed("noted", annotations={"team": "a"}, labels={"team": "a"})),
    Case("a Restart that imitates a round", "person", creates(IMITATED), NOT_THEIRS),
    Case("makes a Restart a round", "person", changed("forged", annotations={names.ROUND: "{}"}), NOT_THEIRS),
    Case("moves a Restart's epoch", "person", changed("raised", annotations={names.EPOCH: "9"}), NOT_THEIRS),
)
