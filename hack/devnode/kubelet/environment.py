"""A container's environment and command as kubelet builds them: literals, downward fields, ``$(VAR)``. Pure."""

import re
from collections.abc import Mapping

from hack.devnode.kubelet.spec import Container, Json, Pod

_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(?P<map>labels|annotations)\['(?P<key>[^']+)'\]")


class UnsupportedFieldError(ValueError):
    """The pod asks for something that this stand-in does not have. The text names it."""


def build(container: Container, *, pod: Pod, pod_ip: str, host_ip: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in the order of the spec; ``extra`` is what device plugins add (it comes last)."""
    fields = _fields(pod, pod_ip=pod_ip, host_ip=host_ip)
    made: dict[str, str] = {}
    for item in container.raw.get("env") or ():
        made[item["name"]] = (
            _from_field(item, pod=pod, fields=fields) if item.get("valueFrom") else expand(item.get("value", ""), made)
        )
    if container.raw.get("envFrom"):
        raise UnsupportedFieldError("envFrom is not supported by this kubelet stand-in")
    return {**made, **extra}


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$`` is a dollar, an unknown name stays as it is (``expansion.Expand``)."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return "$" if name is None else environment.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def _from_field(item: Json, *, pod: Pod, fields: Mapping[str, str]) -> str:
    path = (item["valueFrom"].get("fieldRef") or {}).get("fieldPath", "")
    if path in fields:
        return fields[path]
    if match := _SUBSCRIPT.fullmatch(path):
        values: Json = pod.raw["metadata"].get(match["map"]) or {}
        return str(values.get(match["key"], ""))
    asked = path or ", ".join(item["valueFrom"])
    raise UnsupportedFieldError(f"env {item['name']}: {asked} is not supported by this kubelet stand-in")


def _fields(pod: Pod, *, pod_ip: str, host_ip: str) -> dict[str, str]:
    return {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.get("nodeName", ""),
        "spec.serviceAccountName": pod.spec.get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
    }
