"""The examples are valid, and run as the JobSets that people know."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubemend.common.kube import paths
from kubemend.controller.jobset import decide
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.plan import CreateJob, CreateService, ObservedState
from kubemend.controller.jobset.spec import model, reading, validation
from kubemend.controller.jobset.spec.model import JobSet
from tests.control_plane import ControlPlane

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples"
_NAMES = ("pytorch-ddp", "jax-multihost", "mpi", "ray")
_PODS = {
    "pytorch-ddp": {"pytorch-ddp-workers-0": 4},
    "jax-multihost": {"jax-multihost-hosts-0": 4},
    "mpi": {"mpi-workers-0": 4, "mpi-driver-0": 1},
    "ray": {"ray-head-0": 1, "ray-workers-0": 4},
}

Json = dict[str, Any]


def _documents(name: str) -> dict[str, Json]:
    """Return the documents of a file, by kind."""
    text = (_EXAMPLES / f"{name}.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(params=_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def taken(control_plane: ControlPlane, name: str) -> Json:
    """The example's JobSet as accepted by the API server, which refuses unknown fields."""
    path = paths.collection("jobsets", namespace="default", group="jobset.x-k8s.io", version="v1alpha2")
    return control_plane.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", _documents(name)["JobSet"])


@pytest.fixture
def jobset(taken: Json) -> JobSet:
    """The example's JobSet as the controller receives it after it was applied."""
    return reading.jobset(taken)


def test_each_file_is_tested_and_documented() -> None:
    assert sorted(path.stem for path in _EXAMPLES.glob("*.yaml")) == sorted(_NAMES)
    page = (_EXAMPLES / "README.md").read_text()
    assert all(f"({name}.yaml)" in page for name in _NAMES)


def test_api_server_accepts_every_field(name: str, taken: Json) -> None:
    written = _documents(name)["JobSet"]
    assert taken["metadata"]["name"] == written["metadata"]["name"]
    assert taken["spec"].keys() >= written["spec"].keys()


def test_example_is_valid_and_restarted_in_place(jobset: JobSet) -> None:
    assert jobset.spec.managed_by == model.MANAGED_BY
    assert jobset.spec.is_in_place
    assert validation.problems(jobset) == ()


def test_applied_example_becomes_these_jobs_and_a_service(name: str, jobset: JobSet) -> None:
    plan = decide.decide(ObservedState(jobset=jobset, jobs=(), now=1_800_000_000.0))
    writes = [each for group in plan.writes for each in group]
    jobs = {each.name: each.body for each in writes if isinstance(each, CreateJob)}
    assert {job: body["spec"]["completions"] for job, body in jobs.items()} == _PODS[name]
    (service,) = [each for each in writes if isinstance(each, CreateService)]
    assert service.body["metadata"]["name"] == name
    for body in jobs.values():
        template = body["spec"]["template"]
        assert template["spec"]["subdomain"] == name
        assert template["metadata"]["annotations"]["kubemend.io/restart"] == "InPlace"


@pytest.mark.parametrize("name", ["pytorch-ddp", "jax-multihost", "ray"], indirect=True)
def test_coordinator_address_is_that_of_a_pod(name: str, jobset: JobSet) -> None:
    address = naming.coordinator(jobset)
    assert address is not None
    host, _, subdomain = address.partition(".")
    assert subdomain == name
    assert host in {f"{job}-{index}" for job, count in _PODS[name].items() for index in range(count)}


def test_mpi_knows_its_workers_by_their_addresses() -> None:
    (driver,) = [each for each in _documents("mpi")["JobSet"]["spec"]["replicatedJobs"] if each["name"] == "driver"]
    (container,) = driver["template"]["spec"]["template"]["spec"]["containers"]
    hosts = {each["name"]: each["value"] for each in container["env"]}["HOSTS"].split()
    assert hosts == [f"mpi-workers-0-{index}.mpi" for index in range(4)]
    assert "--mca orte_keep_fqdn_hostnames true" in container["args"][0], "else mpirun drops the name's domain"


def test_mpirun_may_run_as_its_images_user() -> None:
    (driver,) = [each for each in _documents("mpi")["JobSet"]["spec"]["replicatedJobs"] if each["name"] == "driver"]
    pod = driver["template"]["spec"]["template"]["spec"]
    assert "securityContext" not in pod, "the image's user is root, and mpirun refuses that by default"
    assert "mpirun --allow-run-as-root " in pod["containers"][0]["args"][0]


def test_mounted_objects_exist_or_are_documented(name: str) -> None:
    documents, text = _documents(name), (_EXAMPLES / f"{name}.yaml").read_text()
    for replicated_job in documents["JobSet"]["spec"]["replicatedJobs"]:
        pod = replicated_job["template"]["spec"]["template"]["spec"]
        mounted = {each["name"] for container in pod["containers"] for each in container.get("volumeMounts", ())}
        assert mounted == {each["name"] for each in pod.get("volumes", ())}
        for volume in pod.get("volumes", ()):
            if "configMap" in volume:
                assert volume["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == documents["PersistentVolumeClaim"]["metadata"]["name"]
            if "secret" in volume:
                assert f"create secret generic {volume['secret']['secretName']} " in text


@pytest.mark.parametrize("name", ["pytorch-ddp", "jax-multihost", "ray"])
def test_programs_are_python(name: str) -> None:
    for path, source in _documents(name)["ConfigMap"]["data"].items():
        compile(source, path, "exec")
