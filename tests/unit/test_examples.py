"""The examples are what they say: understood, valid, and run as the JobSets that people know."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.jobset import decide, model, naming, reading, validation
from controller.jobset.model import JobSet
from controller.jobset.plan import CreateJob, CreateService, World
from hack.devnode.api import schemas

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
    """Return what a file holds, by kind."""
    text = (_EXAMPLES / f"{name}.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def _schema() -> Json:
    crd = yaml.safe_load((_ROOT / "daemonset" / "jobset" / "crd.yaml").read_text())
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _jobset(name: str) -> JobSet:
    """Return a JobSet as the controller has it once it has been applied."""
    written = schemas.defaulted(_schema(), _documents(name)["JobSet"])
    meta = {**written["metadata"], "namespace": "default", "uid": "0b7e55ab-uid", "generation": 1}
    return reading.jobset({**written, "metadata": meta})


def test_each_file_is_tested_and_told_of() -> None:
    assert sorted(path.stem for path in _EXAMPLES.glob("*.yaml")) == sorted(_NAMES)
    page = (_EXAMPLES / "README.md").read_text()
    assert all(f"({name}.yaml)" in page for name in _NAMES)


@pytest.mark.parametrize("name", _NAMES)
def test_the_definition_takes_every_field(name: str) -> None:
    written = _documents(name)["JobSet"]
    assert [*schemas.faults(_schema(), written)] == []
    assert schemas.pruned(_schema(), written) == written


@pytest.mark.parametrize("name", _NAMES)
def test_it_is_valid_and_restarted_in_place(name: str) -> None:
    jobset = _jobset(name)
    assert jobset.spec.managed_by == model.MANAGED_BY
    assert jobset.spec.is_in_place
    assert validation.problems(jobset) == ()


@pytest.mark.parametrize("name", _NAMES)
def test_applied_it_becomes_these_jobs_and_a_service(name: str) -> None:
    jobset = _jobset(name)
    plan = decide.decide(World(jobset=jobset, jobs=(), now=1_800_000_000.0))
    writes = [each for group in plan.writes for each in group]
    jobs = {each.name: each.body for each in writes if isinstance(each, CreateJob)}
    assert {job: body["spec"]["completions"] for job, body in jobs.items()} == _PODS[name]
    (service,) = [each for each in writes if isinstance(each, CreateService)]
    assert service.body["metadata"]["name"] == name
    for body in jobs.values():
        template = body["spec"]["template"]
        assert template["spec"]["subdomain"] == name
        assert template["metadata"]["annotations"]["kubemend.io/restart"] == "InPlace"


@pytest.mark.parametrize("name", ["pytorch-ddp", "jax-multihost", "ray"])
def test_the_coordinators_address_is_that_of_a_pod(name: str) -> None:
    jobset = _jobset(name)
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


@pytest.mark.parametrize("name", _NAMES)
def test_what_pods_mount_is_there_or_told_of(name: str) -> None:
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
