"""The component caches: pods that opted in get a volume for compile caches, and keep what they set themselves."""

from typing import Any

import pytest

from kubemend.common.kube import client
from kubemend.controller.jobset.children import caches
from tests.contract.api import objects

OPTED_IN = {"kubemend.io/restart": "InPlace"}
MOUNT = {"name": "kubemend-cache", "mountPath": "/var/cache/kubemend"}
TRAINERS = {
    "CUDA_CACHE_PATH": "/var/cache/kubemend/trainer/cuda",
    "JAX_COMPILATION_CACHE_DIR": "/var/cache/kubemend/trainer/jax",
    "PYTHONPYCACHEPREFIX": "/var/cache/kubemend/trainer/python",
    "TORCHINDUCTOR_CACHE_DIR": "/var/cache/kubemend/trainer/inductor",
    "TORCH_EXTENSIONS_DIR": "/var/cache/kubemend/trainer/torch-extensions",
    "TRITON_CACHE_DIR": "/var/cache/kubemend/trainer/triton",
    "XDG_CACHE_HOME": "/var/cache/kubemend/trainer/xdg",
}
FROM_A_CONFIG_MAP = [{"configMapRef": {"name": "settings", "optional": True}}]

Json = dict[str, Any]


async def created(
    api: client.KubeClient,
    containers: Json,
    *,
    annotations: Json = OPTED_IN,
    volumes: list[Json] | None = None,
    spec: Json | None = None,
) -> Json:
    """Return the pod that the API server would create, of these containers or this ``spec``."""
    pod = objects.pod("x", annotations=annotations)
    pod["spec"]["containers"] = [{"name": name, "image": "busybox:1", **more} for name, more in containers.items()]
    if volumes is not None:
        pod["spec"]["volumes"] = volumes
    pod["spec"].update(spec or {})
    return await api.create(f"{objects.pods('default')}?dryRun=All", pod)


def environment(pod: Json, container: str) -> dict[str, str | None]:
    (found,) = [each for each in pod["spec"]["containers"] if each["name"] == container]
    return {each["name"]: each.get("value") for each in found.get("env", ())}


async def test_opted_in_pod_gets_the_volume_and_the_variables(api: client.KubeClient) -> None:
    pod = await created(api, {"trainer": {"env": [{"name": "RANK", "value": "0"}]}})
    assert pod["spec"]["volumes"] == [{"name": "kubemend-cache", "emptyDir": {}}]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [MOUNT]
    assert environment(pod, "trainer") == {"RANK": "0", **TRAINERS}


@pytest.mark.parametrize(
    ("size", "volume"), [("20Gi", {"sizeLimit": "20Gi"}), ("much", {}), ("", {})], ids=["quantity", "word", "empty"]
)
async def test_pod_may_limit_the_volume(api: client.KubeClient, size: str, volume: Json) -> None:
    pod = await created(api, {"trainer": {}}, annotations={**OPTED_IN, "kubemend.io/cache-size": size})
    assert pod["spec"]["volumes"] == [{"name": "kubemend-cache", "emptyDir": volume}]
    assert environment(pod, "trainer") == TRAINERS


async def test_each_container_has_directories_of_its_own(api: client.KubeClient) -> None:
    pod = await created(api, {"trainer": {}, "log-shipper": {}})
    assert environment(pod, "trainer") == TRAINERS
    assert environment(pod, "log-shipper")["TRITON_CACHE_DIR"] == "/var/cache/kubemend/log-shipper/triton"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["trainer", "log-shipper"]


async def test_what_the_pod_sets_stays(api: client.KubeClient) -> None:
    claim = {"name": "kubemend-cache", "persistentVolumeClaim": {"claimName": "caches"}}
    mount = {"name": "kubemend-cache", "mountPath": "/var/cache/kubemend", "subPath": "of-this-job"}
    of_pod = {"name": "XDG_CACHE_HOME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}
    own = {"env": [{"name": "TRITON_CACHE_DIR", "value": "/data/triton"}, of_pod], "volumeMounts": [mount]}
    pod = await created(api, {"trainer": own}, volumes=[claim])
    assert pod["spec"]["volumes"] == [claim]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [mount]
    assert environment(pod, "trainer") == {**TRAINERS, "TRITON_CACHE_DIR": "/data/triton", "XDG_CACHE_HOME": None}
    assert of_pod in pod["spec"]["containers"][0]["env"]


async def test_variables_of_a_config_map_are_not_overridden_unless_the_pod_allows_it(api: client.KubeClient) -> None:
    trainer = {"trainer": {"envFrom": FROM_A_CONFIG_MAP}}
    pod = await created(api, trainer)
    assert (environment(pod, "trainer"), pod["spec"]["containers"][0]["volumeMounts"]) == ({}, [MOUNT])
    pod = await created(api, trainer, annotations={**OPTED_IN, "kubemend.io/cache": "On"})
    assert environment(pod, "trainer") == TRAINERS


@pytest.mark.parametrize("annotations", [{}, {**OPTED_IN, "kubemend.io/cache": "Off"}], ids=["not opted in", "off"])
async def test_other_pods_are_left_alone(api: client.KubeClient, annotations: Json) -> None:
    pod = await created(api, {"trainer": {}}, annotations=annotations)
    assert "volumes" not in pod["spec"]
    assert pod["spec"]["containers"][0].keys().isdisjoint({"env", "volumeMounts"})


OWN_CLAIM = {"name": "kubemend-cache", "persistentVolumeClaim": {"claimName": "caches"}}
OWN_MOUNT = {"name": "data", "mountPath": "/var/cache/kubemend", "subPath": "of-this-job"}
DATA = {"name": "data", "emptyDir": {}}


@pytest.mark.parametrize(
    ("container", "volumes"),
    [
        ({}, None),
        ({"env": [{"name": "RANK", "value": "0"}, {"name": "XDG_CACHE_HOME", "value": "/x"}]}, [DATA]),
        ({"env": [{"name": "TRITON_CACHE_DIR", "value": each} for each in "ab"]}, [OWN_CLAIM]),
        ({"envFrom": FROM_A_CONFIG_MAP, "volumeMounts": [OWN_MOUNT]}, [DATA]),
        ({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, [DATA]),
    ],
    ids=["bare", "variables", "twice and claim", "mount", "another mount"],
)
@pytest.mark.parametrize("size", ["20Gi", "much", None])
async def test_jobset_controller_gives_templates_the_same(
    api: client.KubeClient, container: Json, volumes: list[Json] | None, size: str | None
) -> None:
    annotations = {**OPTED_IN, "kubemend.io/cache": "On", **({"kubemend.io/cache-size": size} if size else {})}
    containers = [{"name": name, "image": "busybox:1", **container} for name in ("trainer", "log-shipper")]
    spec = {"containers": containers, **({"volumes": volumes} if volumes is not None else {})}
    ours = caches.with_cache(spec, annotations)
    by_policy, again = [(await created(api, {}, annotations=annotations, spec=each))["spec"] for each in (spec, ours)]
    assert in_order(again) == in_order(by_policy)
    assert [each["env"] for each in again["containers"]] == [each["env"] for each in ours["containers"]]


def in_order(spec: Json) -> Json:
    """Sort variables, which the policy adds in any order; those of one name stay in theirs: the last one counts."""
    containers = [{**each, "env": sorted(each["env"], key=lambda one: one["name"])} for each in spec["containers"]]
    return {**spec, "containers": containers}


async def test_a_variable_that_is_set_twice_stays_so(api: client.KubeClient) -> None:
    """The last one counts, and a merge that knew one only would fail the policy."""
    twice = [{"name": "TRITON_CACHE_DIR", "value": "/a"}, {"name": "TRITON_CACHE_DIR", "value": "/b"}]
    pod = await created(api, {"trainer": {"env": twice}})
    assert [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "TRITON_CACHE_DIR"] == twice
