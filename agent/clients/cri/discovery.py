"""Find the container runtime's socket: the configured one, else kubelet's, else the runtimes' usual paths."""

import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import yaml

ENVIRONMENT_VARIABLE = "CONTAINER_RUNTIME_ENDPOINT"
"""The variable that crictl reads."""

KUBELET_CONFIG = pathlib.Path("/var/lib/kubelet/config.yaml")
"""Where kubeadm writes kubelet's configuration."""

KUBELET_INSTANCE_CONFIG = pathlib.Path("/var/lib/kubelet/instance-config.yaml")
"""Where kubeadm writes this node's own patch of it (since 1.32, NodeLocalCRISocket); it overrides the former."""

WELL_KNOWN: tuple[tuple[str, str], ...] = (
    ("containerd", "/run/containerd/containerd.sock"),
    ("CRI-O", "/run/crio/crio.sock"),
    ("k3s", "/run/k3s/containerd/containerd.sock"),
    ("k0s", "/run/k0s/containerd.sock"),
    ("MicroK8s", "/var/snap/microk8s/common/run/containerd.sock"),
)
"""Sockets of the usual runtimes and distributions. On hosts where /var/run is not a link to /run, set the endpoint."""


class NoRuntimeSocketError(Exception):
    """No socket was found. The message is one line: the paths that were tried, and the hint."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path to try. A ``binding`` one is used even if it does not exist yet, because a user configured it."""

    path: str
    reason: str
    binding: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The socket to use, and the reason."""

    path: str
    reason: str


def choose(candidates: Iterable[Candidate], *, exists: Callable[[str], bool]) -> Choice:
    """Return the first candidate that is binding or exists.

    Raises NoRuntimeSocketError, which lists the paths that were tried.
    """
    looked_at = []
    for candidate in candidates:
        if candidate.binding or exists(candidate.path):
            return Choice(path=candidate.path, reason=candidate.reason)
        looked_at.append(candidate.path)
    raise NoRuntimeSocketError(
        f"no container runtime socket found (tried {', '.join(looked_at) or 'nothing'}); start the runtime, "
        f"mount its socket's directory, or set --cri-endpoint or {ENVIRONMENT_VARIABLE}"
    )


def candidates(
    *,
    explicit: str | None,
    environment: Mapping[str, str],
    kubelet_configs: Mapping[str, str],
) -> Iterator[Candidate]:
    """Yield the paths to try, best first. ``kubelet_configs`` maps the path of each file found to its text.

    Raises ValueError if the configured endpoint, or the one in the environment, is not a unix socket.
    """
    if explicit:
        yield Candidate(path=socket_path(explicit), reason="set explicitly", binding=True)
    if named := environment.get(ENVIRONMENT_VARIABLE):
        yield Candidate(path=socket_path(named), reason=f"set by {ENVIRONMENT_VARIABLE}", binding=True)
    for file, text in kubelet_configs.items():
        if (endpoint := _kubelet_endpoint(text)) is not None:
            yield Candidate(path=endpoint, reason=f"containerRuntimeEndpoint in {file}")
    for runtime, path in WELL_KNOWN:
        yield Candidate(path=path, reason=f"the usual path of {runtime}")


def socket_path(endpoint: str) -> str:
    """Return the absolute path in ``unix:///run/x.sock``, ``unix:/run/x.sock`` or ``/run/x.sock``.

    Raises ValueError for anything else; CRI over TCP does not exist on Linux.
    """
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise ValueError(f"CRI endpoint {endpoint!r} is not an absolute unix socket path; write unix:///run/…/x.sock")
    return path


def discover(
    explicit: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    kubelet_configs: Iterable[pathlib.Path] = (KUBELET_INSTANCE_CONFIG, KUBELET_CONFIG),
) -> Choice:
    """Find the socket on this machine. Raises NoRuntimeSocketError, or ValueError if the configured one is invalid."""
    found = {str(path): text for path in kubelet_configs if (text := _read(path)) is not None}
    places = candidates(explicit=explicit, environment=environment, kubelet_configs=found)
    return choose(places, exists=lambda path: pathlib.Path(path).is_socket())


def _read(path: pathlib.Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # only a hint: a file that is missing, not mounted or not readable is ignored


def _kubelet_endpoint(text: str) -> str | None:
    """Return the socket path in a KubeletConfiguration, or None if it has no valid one."""
    try:
        document = yaml.safe_load(text)
        endpoint = document.get("containerRuntimeEndpoint") if isinstance(document, dict) else None
        return socket_path(endpoint) if isinstance(endpoint, str) and endpoint else None
    except (yaml.YAMLError, ValueError):
        return None
