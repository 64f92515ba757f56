"""A Job's podFailurePolicy: what a failed pod means to it. Pure.

Source: pkg/controller/job/pod_failure_policy.go of Kubernetes 1.36.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``action`` "" where no rule speaks of the pod; ``message`` is for the Job that fails by it."""

    action: str = ""
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether the failure counts towards the backoff limits."""
        return self.action != "Ignore"


def judge(job: Json, pod: Json) -> Verdict:
    """Return what the first rule that matches says of a failed pod."""
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or ()):
        action = str(rule["action"])
        if rule.get("onExitCodes"):
            if (container := _exited(pod, rule["onExitCodes"])) is not None:
                code = container["state"]["terminated"]["exitCode"]
                told = f"Container {container['name']} for pod {where} failed with exit code {code}"
                return Verdict(action, f"{told} matching {action} rule at index {number}")
        elif (condition := _condition(pod, rule.get("onPodConditions") or ())) is not None:
            return Verdict(action, f"Pod {where} has condition {condition} matching {action} rule at index {number}")
    return Verdict()


def _exited(pod: Json, wanted: Json) -> Json | None:
    status = pod.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(kind) or ():
            code = ((each.get("state") or {}).get("terminated") or {}).get("exitCode", 0)
            named = wanted.get("containerName") in (None, each["name"])
            if named and code and (code in wanted["values"]) is (wanted["operator"] == "In"):
                found: Json = each
                return found
    return None


def _condition(pod: Json, patterns: Any) -> str | None:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if any((each["type"], each["status"]) == (one["type"], one.get("status", "True")) for one in patterns):
            return str(each["type"])
    return None
