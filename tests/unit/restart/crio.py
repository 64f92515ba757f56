"""The answers of a real CRI-O 1.34 about a container that a real kubelet created (``crio_answers.json``).

Recorded on the dev cluster (``python -m hack.devnode start --runtime cri-o``); the directories are CRI-O's usual ones.
"""

import copy
import functools
import json
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from kubemend.agent.clients.cri import convert
from kubemend.agent.restart import intents, likeness
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.unit.restart import builders

Json = dict[str, Any]

NEW_ID = "5" * 64


@functools.cache
def _recorded() -> Json:
    found: Json = json.loads(Path(__file__).with_name("crio_answers.json").read_text(encoding="utf-8"))
    return found


def info() -> Json:
    """Return the verbose part of the container's status."""
    found: Json = copy.deepcopy(_recorded()["container"]["info"])
    return found


def spec() -> Json:
    """Return its OCI spec."""
    found: Json = info()["runtimeSpec"]
    return found


def status() -> api_pb2.ContainerStatus:
    """Return the container's status."""
    return json_format.ParseDict(_recorded()["container"]["status"], api_pb2.ContainerStatus())


def intent() -> intents.Intent:
    """Return a swap of the container."""
    target = convert.container_ref(status().labels)
    assert target is not None
    return builders.intent(target=target)


def sandbox() -> tuple[api_pb2.PodSandboxStatusResponse, Json]:
    """Return the sandbox's status and its verbose part."""
    found = _recorded()["sandbox"]
    answer = api_pb2.PodSandboxStatusResponse(status=json_format.ParseDict(found["status"], api_pb2.PodSandboxStatus()))
    return answer, copy.deepcopy(found["info"])


def original(spec_of_old: Json, **resources: Any) -> likeness.Container:
    """Return the container as the one that a successor must be like, with its current resources."""
    return likeness.Container(status().id, spec_of_old, api_pb2.LinuxContainerResources(**resources))
