"""Any answer of a runtime, with any content from a pod, is parsed, or refused with a message."""

import contextlib
import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubemend.agent.clients.cri import convert, errors, events
from kubemend.agent.restart import clone, keep, process
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.unit.restart import builders

LABELS: Final = {
    convert.POD_NAME_LABEL: "trainer-0",
    convert.POD_NAMESPACE_LABEL: "default",
    convert.POD_UID_LABEL: "uid-1",
    convert.CONTAINER_NAME_LABEL: "trainer",
}
WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
CONFIG: Final[dict[str, Any]] = {
    "metadata": {"name": "trainer"},
    "image": {"image": "busybox"},
    "command": ["sleep"],
    "envs": [{"key": "RANK", "value": "0"}],
    "mounts": [{"container_path": "/dev/termination-log", "host_path": "/pods/uid-1/containers/trainer/1"}],
    "labels": LABELS,
    "annotations": {
        clone.RESTART_COUNT_ANNOTATION: "0",
        clone.TERMINATION_PATH_ANNOTATION: "/dev/termination-log",
    },
    "log_path": "trainer/0.log",
    "linux": {"resources": {"cpuset_cpus": "0-3"}, "security_context": {"namespace_options": {"pid": 1}}},
}
VERBOSE: Final[dict[str, Any]] = {
    "sandboxID": "s",
    "pid": 4242,
    "config": CONFIG,
    "runtimeSpec": {
        "process": {"env": ["RANK=0"]},
        "mounts": [{"destination": "/dev/shm", "source": "/run/shm"}],
        "linux": {"cgroupsPath": "kubepods/podx/c"},
    },
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places in a value that could hold another one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, each in inner for path in paths(each, (*at, key)))]


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], by)
    return copy


hostile = st.builds(changed, st.just(VERBOSE), st.sampled_from(paths(VERBOSE)), JSON)
"""A runtime's answer about one container, with another value in one place."""


def status(verbose: str, **changes: Any) -> api_pb2.ContainerStatusResponse:
    reported = api_pb2.ContainerStatus(id="c", state=api_pb2.CONTAINER_RUNNING, labels=LABELS, **changes)
    return api_pb2.ContainerStatusResponse(status=reported, info={"info": verbose})


@given(st.text(max_size=50) | JSON.map(json.dumps) | hostile.map(json.dumps))
@example('{"pid": 1e400}')
@example('{"pid": true}')
def test_any_verbose_status_is_parsed_or_refused(verbose: str) -> None:
    try:
        info = convert.container_status(status(verbose), endpoint="/run/cri.sock")
    except errors.InvalidAnswer:
        return
    assert info.pid is None or info.pid > 0


@pytest.mark.parametrize("opening", ["[", '{"config": '])
def test_deeply_nested_verbose_status_is_refused(opening: str) -> None:
    with pytest.raises(errors.InvalidAnswer):
        convert.container_status(status(opening * 50_000), endpoint="/run/cri.sock")


@pytest.mark.parametrize(
    "lie",
    [
        {"sandboxID": "\ud800"},
        {"config": {**CONFIG, "linux": {"\ud800": 1}}},
        {"config": {**CONFIG, "labels": "\udfff"}},
    ],
)
def test_half_a_surrogate_pair_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidAnswer, match="not JSON"):
        convert.container_status(status(json.dumps(lie)), endpoint="/run/cri.sock")


@pytest.mark.parametrize("path", ["C:\\ud800", "\U0001f600"])
def test_text_that_only_resembles_half_a_pair_is_read(path: str) -> None:
    verbose = json.dumps({"runtimeSpec": {"root": {"path": f"/{path}"}}})
    assert convert.container_status(status(verbose), endpoint="/run/cri.sock").root == f"/{path}"


def test_a_refusal_quotes_only_the_beginning_of_what_it_refuses() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        clone.successor({**CONFIG, "labels": ["x" * 100_000]}, intent=builders.intent(), runtime_env=["RANK=0"])
    assert len(str(refused.value)) <= 500


@given(hostile)
def test_any_config_is_cloned_or_refused(verbose: Any) -> None:
    info = convert.container_status(status(json.dumps(verbose)), endpoint="/run/cri.sock")
    try:
        made = clone.successor(info.config, intent=builders.intent(), runtime_env=info.runtime_env)
    except clone.CloneRefusedError:
        return
    assert made.restart_count > 0


@given(JSON | st.builds(changed, st.just(CONFIG), st.sampled_from(paths(CONFIG)), JSON))
def test_any_sandbox_config_is_parsed_or_refused(config: Any) -> None:
    with contextlib.suppress(clone.CloneRefusedError):
        clone.sandbox_config(config if isinstance(config, dict) else None)


ids = st.sampled_from(["", "a", "b", "s"]) | WORDS
labels = st.dictionaries(st.sampled_from(sorted(LABELS)) | WORDS, WORDS, max_size=5) | st.just(LABELS)
moments = st.integers(min_value=-(2**63), max_value=2**63 - 1)
statuses = st.builds(
    api_pb2.ContainerStatus,
    id=ids,
    state=st.sampled_from(api_pb2.ContainerState.values()),
    labels=labels,
    annotations=st.dictionaries(WORDS, WORDS, max_size=2),
    created_at=moments,
    exit_code=st.integers(min_value=-(2**31), max_value=2**31 - 1),
    reason=WORDS,
)
messages = st.builds(
    api_pb2.ContainerEventResponse,
    container_id=ids,
    container_event_type=st.sampled_from(api_pb2.ContainerEventType.values()),
    created_at=moments,
    pod_sandbox_status=st.builds(api_pb2.PodSandboxStatus, id=ids),
    containers_statuses=st.lists(statuses, max_size=3),
)


@given(st.lists(messages, max_size=8), st.lists(statuses, max_size=4))
def test_any_stream_and_listing_return_each_step_once(
    stream: list[api_pb2.ContainerEventResponse], listed: list[api_pb2.ContainerStatus]
) -> None:
    ledger = events.Ledger()
    views = [view for each in listed if (view := convert.container_view(each, sandbox_id="s")) is not None]
    reported = [*ledger.reconcile(views, at=0)]
    for message in stream:
        if (seen := events.read(message)) is not None:
            reported += ledger.observe(seen)
    reported += ledger.reconcile(views, at=1)
    assert all(event.container.ref.pod.uid for event in reported)


@pytest.mark.parametrize(("key", "expected"), [("c", keep.Snapshot("overlayfs", "c")), ("other", None), (["c"], None)])
def test_the_snapshot_of_another_container_is_not_its_own(key: Any, expected: keep.Snapshot | None) -> None:
    verbose = json.dumps({"snapshotter": "overlayfs", "snapshotKey": key})
    assert convert.container_status(status(verbose), endpoint="e").snapshot == expected


@pytest.mark.parametrize("pid", [0, -1, "1", None, 1.5, True, 2**22 + 1, 2**64])
def test_invalid_pid_is_none(pid: Any) -> None:
    assert convert.container_status(status(json.dumps({"pid": pid})), endpoint="e").pid is None


def with_environment(count: int) -> str:
    config = CONFIG | {"envs": [{"key": f"V{number:06}", "value": "x"} for number in range(count)]}
    spec = VERBOSE["runtimeSpec"] | {"process": {"env": [f"V{number:06}=x" for number in range(count)]}}
    return json.dumps(VERBOSE | {"config": config, "runtimeSpec": spec})


def test_config_within_bound_is_read_and_heavier_one_is_hidden_with_its_size() -> None:
    texts = [with_environment(count) for count in (15_000, 16_500)]
    light, heavy = (convert.container_status(status(text), endpoint="e") for text in texts)
    assert [convert.weight({"info": text}) <= convert.HEAVIEST for text in texts] == [True, False]
    assert light.config is not None
    assert len(light.config["envs"]) == 15_000
    assert (heavy.config, heavy.spec, heavy.runtime_env) == (None, None, None)
    assert heavy.hidden.startswith("ConfigTooLarge: ")
    assert (heavy.pid, heavy.sandbox_id) == (4242, "s"), "the fields before the config are read"


@given(st.text(max_size=30))
def test_any_head_of_heavy_answer_is_read_without_error(head: str) -> None:
    info = convert.container_status(status(head + '"' * (convert.HEAVIEST // 48)), endpoint="e")
    assert info.config is None
    assert info.hidden.startswith("ConfigTooLarge: ")


def test_heavy_sandbox_config_is_not_read() -> None:
    text = json.dumps({"config": {"labels": {f"{number}": "" for number in range(50_000)}}})
    answer = api_pb2.PodSandboxStatusResponse(info={"info": text})
    assert convert.weight(answer.info) > convert.HEAVIEST
    with pytest.raises(clone.CloneRefusedError, match="ConfigTooLarge"):
        convert.sandbox_config(answer, endpoint="e")


def test_status_without_config_still_leads_to_its_launcher() -> None:
    environment = ["RANK=0", "KUBEMEND_CACHE=/scratch/cache", *(f"V{number}=x" for number in range(100))]
    arguments = ["python", "-m", "kubemend_run", *("x" for _ in range(100))]
    spec = VERBOSE["runtimeSpec"] | {"process": {"env": environment, "args": arguments}}
    info = convert.container_status(status(json.dumps(VERBOSE | {"runtimeSpec": spec})), endpoint="e")
    kept = info.without_config()
    assert (kept.config, kept.spec, kept.mount_points) == (None, None, None)
    assert (kept.pid, kept.ref, kept.root) == (info.pid, info.ref, info.root)
    assert process.folder(kept.runtime_env) == "/scratch/cache"
    assert process.runs_launcher(kept.runtime_args)
    assert len(kept.runtime_env or ()) == len(kept.runtime_args or ()) == 1
    assert process.folder(replace(info, runtime_env=None).without_config().runtime_env) == process.CACHE_FOLDER
