"""The runtime behaviour that the swap relies on: containers, config and names, on the stand-in and the real runtime."""

from pathlib import PurePosixPath

import pytest
from google.protobuf import json_format

from kubemend.agent.clients.cri import errors
from kubemend.agent.model.workloads import ContainerId, ContainerState, SandboxId
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.contract.cri.conftest import ECHO, VERBOSE
from tests.contract.cri.node import Node

GONE = ContainerId("0" * 64)


async def test_version_names_the_runtime(node: Node) -> None:
    version = await node.cri.version()

    assert version.name
    assert version.version


async def test_runtime_names_its_oci_runtime_or_leaves_it_to_the_search_path(node: Node) -> None:
    named = await node.cri.named_programs()

    assert named.problem is None
    assert all(each.startswith("/") for each in named.programs)
    assert named.programs or not node.is_crio, "CRI-O looks its programs up by itself, and names them"


async def test_container_is_listed_with_its_pod_and_state(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.create("trainer", attempt=2)

    [created] = await node.cri.list_containers(pod_uid=pod.uid)
    await node.cri.start_container(container_id)
    [running] = await node.cri.list_containers(pod_uid=pod.uid)
    await node.cri.stop_container(container_id, grace=0)
    [exited] = await node.cri.list_containers(pod_uid=pod.uid)

    states = (created.state, running.state, exited.state)
    assert states == (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED)
    assert (created.id, created.sandbox_id, created.attempt) == (container_id, pod.sandbox_id, 2)
    assert (created.ref.name, created.ref.pod.uid) == ("trainer", pod.uid)
    assert created.restart_id == "r-1"
    assert created.created_at > 0


async def test_listing_filters_by_sandbox_name_and_state(node: Node) -> None:
    pod, other = await node.pod(), await node.pod()
    trainer, sidecar = await pod.run("trainer"), await pod.create("sidecar")
    await other.run("trainer")

    in_sandbox = await node.cri.list_containers(sandbox_id=pod.sandbox_id)
    by_name = await node.cri.list_containers(sandbox_id=pod.sandbox_id, name="sidecar")
    by_state = await node.cri.list_containers(pod_uid=pod.uid, state=ContainerState.RUNNING)

    assert [view.id for view in in_sandbox] == [trainer, sidecar]
    assert [view.id for view in by_name] == [sidecar]
    assert [view.id for view in by_state] == [trainer]


async def test_containers_that_kubelet_did_not_make_are_left_out(node: Node) -> None:
    pod = await node.pod()
    foreign = await pod.create("foreign", labelled=False)

    assert await node.cri.list_containers(sandbox_id=pod.sandbox_id) == ()
    with pytest.raises(errors.InvalidAnswer, match="labels"):
        await node.cri.container_status(foreign)


async def test_sandboxes_are_listed_with_the_pods_annotations(node: Node) -> None:
    pod = await node.pod()

    [sandbox] = await node.cri.list_sandboxes(pod_uid=pod.uid)

    assert (sandbox.id, sandbox.pod.uid, sandbox.ready) == (pod.sandbox_id, pod.uid, True)
    assert sandbox.annotations["kubemend.io/restart"] == "InPlace"


async def test_status_returns_the_config_unchanged(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run("trainer", attempt=1)

    info = await node.cri.container_status(container_id)

    assert info.config is not None
    assert info.config["metadata"] == {"name": "trainer", "attempt": 1}
    assert {"key": "GREETING", "value": "hello"} in info.config["envs"]
    assert node.is_crio or len(info.config["envs"]) == 1, "a rebuilt config has the image's variables as well"
    assert PurePosixPath(info.config["log_path"]).name == "trainer-1.log"
    parsed = json_format.ParseDict(
        info.config["linux"]["security_context"]["namespace_options"], api_pb2.NamespaceOption()
    )
    assert (parsed.network, parsed.pid) == (api_pb2.NODE, api_pb2.CONTAINER)
    assert info.runtime_env is not None
    assert "GREETING=hello" in info.runtime_env
    assert info.pid is not None
    assert info.sandbox_id == pod.sandbox_id
    assert info.log_path.endswith("/trainer-1.log")
    assert "hello" not in repr(info)


async def test_sandbox_config_comes_back(node: Node) -> None:
    pod = await node.pod()

    config = await node.cri.sandbox_config(pod.sandbox_id)

    assert config.metadata.uid == pod.uid


async def test_a_taken_name_and_attempt_names_its_holder(node: Node) -> None:
    pod = await node.pod()
    holder = await pod.create("trainer", attempt=1)

    if node.is_crio:  # it takes the call for a repeated one
        assert await pod.create("trainer", attempt=1) == holder
    else:
        with pytest.raises(errors.NameReserved) as caught:
            await pod.create("trainer", attempt=1)
        assert caught.value.holder == holder
    assert await pod.create("trainer", attempt=2) != holder


async def test_a_name_is_free_again_once_its_container_is_removed(node: Node) -> None:
    pod = await node.pod()
    first = await pod.run("trainer")
    await node.cri.remove_container(first)

    assert await pod.create("trainer") != first


async def test_a_container_that_was_not_started_is_removed_without_a_grace_period(node: Node) -> None:
    """The first process of crun ignores SIGTERM until it is started, and CRI-O would wait for the call's deadline."""
    pod = await node.pod()
    await node.cri.remove_container(await pod.create("trainer"))

    assert await node.cri.list_containers(sandbox_id=pod.sandbox_id) == ()


async def test_stop_without_grace_ends_in_137_and_may_be_repeated(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()

    await node.cri.stop_container(container_id, grace=0)
    await node.cri.stop_container(container_id, grace=0)

    info = await node.cri.container_status(container_id)
    assert (info.state, info.exit_code) == (ContainerState.EXITED, 137)
    assert 0 < info.started_at < info.finished_at
    assert info.pid is None


async def test_stopping_and_removing_a_missing_container_succeeds(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()

    await node.cri.remove_container(container_id)
    await node.cri.remove_container(container_id)
    await node.cri.stop_container(container_id, grace=0)

    assert await node.cri.list_containers(pod_uid=pod.uid) == ()


async def test_missing_container_is_not_found(node: Node) -> None:
    pod = await node.pod()

    with pytest.raises(errors.NotFound):
        await node.cri.container_status(GONE)
    with pytest.raises(errors.NotFound):
        await node.cri.start_container(GONE)
    with pytest.raises(errors.NotFound):
        await node.cri.sandbox_config(SandboxId(GONE))
    with pytest.raises(errors.NotFound):
        await node.cri.create_container(
            sandbox_id=SandboxId(GONE), config=node.container_config("x"), sandbox_config=pod.config
        )


async def test_starting_a_running_container_fails(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()

    with pytest.raises(errors.CallFailed, match=r"CONTAINER_RUNNING|not in created state: running"):
        await node.cri.start_container(container_id)


async def test_exec_gives_output_and_exit_code(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()

    result = await node.cri.exec_sync(container_id, ECHO, timeout=60)

    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_exec_with_too_much_output_is_reported_and_not_read(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()

    with pytest.raises(errors.AnswerTooLong):
        await node.cri.exec_sync(container_id, VERBOSE, timeout=60)


async def test_exec_in_an_exited_container_fails(node: Node) -> None:
    pod = await node.pod()
    container_id = await pod.run()
    await node.cri.stop_container(container_id, grace=0)

    with pytest.raises(errors.NotFound if node.is_crio else errors.CallFailed):
        await node.cri.exec_sync(container_id, ("/bin/true",), timeout=60)


async def test_probe_finds_config_and_events(node: Node) -> None:
    pod = await node.pod()
    await pod.create()

    capabilities = await node.cri.probe()

    assert capabilities.gives_config is True
    assert capabilities.has_events is node.has_events
