"""Where the runtime's socket is searched."""

import pathlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.clients.cri import discovery

KUBELET = {"/var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/k.sock\n"}


def chosen(
    *,
    explicit: str | None = None,
    environment: dict[str, str] | None = None,
    kubelet: dict[str, str] | None = None,
    present: set[str],
) -> discovery.Choice:
    places = discovery.candidates(explicit=explicit, environment=environment or {}, kubelet_configs=kubelet or {})
    return discovery.choose(places, exists=present.__contains__)


def test_explicit_endpoint_wins_even_if_missing() -> None:
    everything = {"/run/k.sock", "/run/containerd/containerd.sock"}

    choice = chosen(
        explicit="unix:///run/mine.sock",
        environment={"CONTAINER_RUNTIME_ENDPOINT": "unix:///run/env.sock"},
        kubelet=KUBELET,
        present=everything,
    )

    assert choice == discovery.Choice(path="/run/mine.sock", reason="set explicitly")


def test_environment_overrides_kubelets_config() -> None:
    choice = chosen(
        environment={"CONTAINER_RUNTIME_ENDPOINT": "unix:///run/env.sock"}, kubelet=KUBELET, present={"/run/k.sock"}
    )

    assert choice.path == "/run/env.sock"
    assert "CONTAINER_RUNTIME_ENDPOINT" in choice.reason


def test_kubelets_config_overrides_well_known_paths() -> None:
    choice = chosen(kubelet=KUBELET, present={"/run/k.sock", "/run/containerd/containerd.sock"})

    assert choice.path == "/run/k.sock"
    assert "/var/lib/kubelet/config.yaml" in choice.reason


@pytest.mark.parametrize(("runtime", "path"), discovery.WELL_KNOWN)
def test_existing_well_known_path_is_found(runtime: str, path: str) -> None:
    choice = chosen(present={path})

    assert choice.path == path
    assert runtime in choice.reason


def test_error_lists_tried_paths_and_hint() -> None:
    with pytest.raises(discovery.NoRuntimeSocketError) as caught:
        chosen(kubelet=KUBELET, present=set())

    message = str(caught.value)
    assert "/run/k.sock" in message
    assert all(path in message for _, path in discovery.WELL_KNOWN)
    assert "CONTAINER_RUNTIME_ENDPOINT" in message
    assert "\n" not in message


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "run/x.sock", "unix://x.sock", "http://x", "npipe:////./x"])
def test_endpoint_that_is_no_unix_socket_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="absolute unix socket path"):
        discovery.socket_path(endpoint)


@pytest.mark.parametrize("endpoint", ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"])
def test_every_unix_socket_spelling_is_accepted(endpoint: str) -> None:
    assert discovery.socket_path(endpoint) == "/run/x.sock"


@given(
    text=st.text() | st.sampled_from(["[]", "a: [", "containerRuntimeEndpoint: 3", "containerRuntimeEndpoint: tcp://x"])
)
def test_any_kubelet_config_content_is_harmless(text: str) -> None:
    choice = chosen(kubelet={"config.yaml": text}, present={"/run/containerd/containerd.sock"})

    assert choice.path == "/run/containerd/containerd.sock"


def test_instance_config_overrides_config_and_only_sockets_count(tmp_path: pathlib.Path) -> None:
    config, instance = tmp_path / "config.yaml", tmp_path / "instance-config.yaml"
    plain, real = tmp_path / "plain", tmp_path / "real.sock"
    plain.touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(real))
        config.write_text(f"containerRuntimeEndpoint: unix://{real}\n")
        instance.write_text(f"containerRuntimeEndpoint: unix://{plain}\n")
        choice = discovery.discover(environment={}, kubelet_configs=(instance, config))

    assert choice.path == str(real)
