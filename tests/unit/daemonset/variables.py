"""Expand a container's variables as kubelet does."""

import re
from typing import Final

from tests.unit.daemonset import manifests

NODE_IP: Final = "192.0.2.7"
REFERENCE: Final = re.compile(r"\$\((\w+)\)")

_DOWNWARD: Final = {"spec.nodeName": "node-1", "metadata.uid": "uid-1", "status.hostIP": NODE_IP}


def expanded(container: manifests.Json) -> dict[str, str]:
    """Return the variables: in order, each from those before it. KeyError for one that is not defined yet."""
    made: dict[str, str] = {}
    for item in container["env"]:
        text = item["value"] if "value" in item else _DOWNWARD[item["valueFrom"]["fieldRef"]["fieldPath"]]
        made[item["name"]] = REFERENCE.sub(lambda found: made[found[1]], text)
    return made
