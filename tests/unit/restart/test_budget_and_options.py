"""The options in a pod's annotations."""

import contextlib
import math
import pathlib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid
from kubemend.agent.restart import host_files, intents, options
from kubemend.common.pb.runtime.v1 import api_pb2

CRD = pathlib.Path(__file__).parents[3] / "daemonset" / "crds" / "restarts.yaml"

_NAMES = (
    options.RESTART,
    options.STRATEGY,
    options.CONTAINERS,
    options.GRACE_PERIOD,
    options.MAX_RESTARTS,
    options.HEARTBEAT_FILE,
    options.HEARTBEAT_TIMEOUT,
    options.CLEAN,
)
_NUMBERS = st.from_regex(r"\d{1,25}(\.\d{1,25})?(ms|s|m|h)?", fullmatch=True)
_MANY_DIGITS = st.integers(1, 5000).map(lambda count: "9" * count)
_WORDS = st.sampled_from(["InPlace", "swap", "shm", "/beat", "60s", "3"])
_TEXTS = st.text() | _NUMBERS | _MANY_DIGITS | _WORDS


def test_annotations_are_parsed() -> None:
    found = options.parse(
        {
            "kubemend.io/restart": "InPlace",
            "kubemend.io/strategy": "swap",
            "kubemend.io/containers": "trainer, sidecar",
            "kubemend.io/grace-period": "1.5s",
            "kubemend.io/max-restarts": "3",
        }
    )
    assert found == options.Options(
        opted_in=True,
        strategy=intents.Strategy.SWAP,
        containers=frozenset({"trainer", "sidecar"}),
        grace_seconds=1.5,
        max_restarts=3,
    )


def parsed(annotations: dict[str, str]) -> options.Options | options.BadAnnotationError:
    try:
        return options.parse(annotations)
    except options.BadAnnotationError as error:
        return error


@given(annotations=st.dictionaries(st.sampled_from(_NAMES), _TEXTS))
@example(annotations={options.MAX_RESTARTS: "9" * 5000})
@example(annotations={options.GRACE_PERIOD: "9" * 400})
@example(annotations={options.HEARTBEAT_FILE: "/beat", options.HEARTBEAT_TIMEOUT: "9" * 400})
def test_any_text_is_valid_or_named_in_the_error(annotations: dict[str, str]) -> None:
    with contextlib.suppress(options.BadAnnotationError):
        assert options.clean(annotations) <= frozenset(options.Clean)
    found = parsed(annotations)
    if isinstance(found, options.BadAnnotationError):
        assert any(name in str(found) for name in _NAMES)
        return
    assert 0 <= api_pb2.StopContainerRequest(timeout=math.ceil(found.grace_seconds)).timeout <= 3600
    assert found.heartbeat is None or 1 <= found.heartbeat.timeout <= 86400
    assert found.budget().restarts.limit < 10**9


@pytest.mark.parametrize("text", ["3600", "60m", "1h", "3600000ms"])
def test_longest_grace_period_is_an_hour(text: str) -> None:
    assert options.parse({"kubemend.io/grace-period": text}).grace_seconds == options.LONGEST_GRACE


def test_longest_grace_period_equals_that_of_a_restart() -> None:
    (definition,) = yaml.safe_load_all(CRD.read_text("utf-8"))
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["gracePeriodSeconds"]["maximum"] == options.LONGEST_GRACE


@pytest.mark.parametrize("text", ["3601", "1.01h", "99999999999999999999", "9" * 400])
def test_longer_grace_period_is_refused_by_name(text: str) -> None:
    with pytest.raises(options.BadAnnotationError, match=f"{options.GRACE_PERIOD} is .* must be from 0s to 3600s"):
        options.parse({"kubemend.io/grace-period": text})


@pytest.mark.parametrize("name", _NAMES)
def test_overlong_annotation_is_named_but_not_repeated(name: str) -> None:
    with pytest.raises(options.BadAnnotationError, match=f"^annotation {name} is too long; the maximum"):
        options.parse({name: "1" * 1001})


@pytest.mark.parametrize(("text", "seconds"), [("10", 10.0), ("500ms", 0.5), ("2m", 120.0), ("0", 0.0)])
def test_durations(text: str, seconds: float) -> None:
    assert options.parse({"kubemend.io/grace-period": text}).grace_seconds == seconds


@pytest.mark.parametrize(
    "annotation",
    [
        {"kubemend.io/restart": "inplace"},
        {"kubemend.io/strategy": "fast"},
        {"kubemend.io/grace-period": "soon"},
        {"kubemend.io/max-restarts": "-1"},
        {"kubemend.io/max-restarts": ""},
        {"kubemend.io/max-restarts": "1234567890"},
        {"kubemend.io/max-restarts": "٣"},
    ],
)
def test_an_annotation_that_cannot_be_understood_is_named(annotation: dict[str, str]) -> None:
    with pytest.raises(options.BadAnnotationError, match=next(iter(annotation))):
        options.parse(annotation)


def test_log_symlink_name_equals_kubelets() -> None:
    ref = ContainerRef(pod=PodRef("ns", "pod", PodUid("u")), name="main")
    assert host_files.log_symlink_name(ref, ContainerId("abc")) == "pod_ns_main-abc.log"


def test_log_symlink_name_fits_the_file_system() -> None:
    ref = ContainerRef(pod=PodRef("n" * 63, "p" * 253, PodUid("u")), name="c" * 63)
    name = host_files.log_symlink_name(ref, ContainerId("f" * 64))
    assert len(name) == 255
    assert name.endswith(".log")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("kubemend.io/grace-periods", " (did you mean kubemend.io/grace-period?)"), ("kubemend.io/zzz", "")],
)
def test_unknown_annotations_are_named_and_refuse_nothing(name: str, hint: str) -> None:
    annotations = {options.RESTART: options.IN_PLACE, "example.com/restarts": "x", options.CACHE_SIZE: "1Gi", name: "x"}
    assert options.unknown(annotations) == f"unknown annotations have no effect: {name}{hint}"
    assert options.parse(annotations).opted_in
    assert options.unknown({key: annotations[key] for key in annotations if key != name}) == ""
