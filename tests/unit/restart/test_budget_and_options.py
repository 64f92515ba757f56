"""What a pod's annotations may say."""

import pytest

from agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid
from agent.restart import host_files, intents, options


def test_annotations_are_read() -> None:
    wishes = options.parse(
        {
            "kubemend.io/restart": "InPlace",
            "kubemend.io/strategy": "swap",
            "kubemend.io/containers": "trainer, sidecar",
            "kubemend.io/grace-period": "1.5s",
            "kubemend.io/max-restarts": "3",
        }
    )
    assert wishes == options.Options(
        opted_in=True,
        strategy=intents.Strategy.SWAP,
        containers=frozenset({"trainer", "sidecar"}),
        grace_seconds=1.5,
        max_restarts=3,
    )


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
    ],
)
def test_an_annotation_that_cannot_be_understood_is_named(annotation: dict[str, str]) -> None:
    with pytest.raises(options.BadAnnotationError, match=next(iter(annotation))):
        options.parse(annotation)


def test_log_symlinks_are_named_as_kubelet_names_them() -> None:
    ref = ContainerRef(pod=PodRef("ns", "pod", PodUid("u")), name="main")
    assert host_files.log_symlink_name(ref, ContainerId("abc")) == "pod_ns_main-abc.log"


def test_a_log_symlink_name_fits_the_file_system() -> None:
    ref = ContainerRef(pod=PodRef("n" * 63, "p" * 253, PodUid("u")), name="c" * 63)
    name = host_files.log_symlink_name(ref, ContainerId("f" * 64))
    assert len(name) == 255
    assert name.endswith(".log")
