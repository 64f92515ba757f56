"""Only containers that are processes of the node are restarted."""

import pytest

from kubemend.agent.restart import oci_programs


@pytest.mark.parametrize(
    ("runtime_type", "handler"),
    [
        ("io.containerd.runc.v2", ""),
        ("io.containerd.runc.v2", "nvidia"),
        ("io.containerd.runc.v1", "crun"),
        ("io.containerd.runtime.v1.linux", ""),
        (None, ""),
        (None, "crun-katamari"),
    ],
)
def test_runtime_with_node_processes_is_supported(runtime_type: str | None, handler: str) -> None:
    assert oci_programs.unsupported(runtime_type=runtime_type, handler=handler) is None


@pytest.mark.parametrize(
    ("runtime_type", "handler", "word"),
    [
        ("io.containerd.runsc.v1", "", "runsc"),
        ("io.containerd.kata.v2", "nvidia", "kata"),
        ("io.containerd.kata-qemu.v2", "", "kata"),
        ("io.containerd.spin.v2", "", "spin"),
        ("io.containerd.runc.v2", "kata", "kata"),
        (None, "gvisor", "gvisor"),
        (None, "runsc", "runsc"),
        (None, "Kata-Containers", "kata"),
        (None, "kata_clh", "kata"),
    ],
)
def test_sandboxed_runtime_is_refused_by_name(runtime_type: str | None, handler: str, word: str) -> None:
    reason = oci_programs.unsupported(runtime_type=runtime_type, handler=handler)
    assert reason is not None
    assert word in reason
