"""Render the progress of a restart as lines for people. Pure."""

from collections.abc import Mapping
from typing import Any

from kubemend.agent.restart import verification
from kubemend.common import plain

Json = Mapping[str, Any]
_GIB = 1 << 30


class Lines:
    """Renders events as lines, in their order. An event that repeats the last wait gives no line."""

    def __init__(self) -> None:
        self._waited_for: tuple[Any, ...] | None = None

    def line(self, event: Json) -> str | None:
        """Return the event as a line that starts with the milliseconds since the request; None for a repetition."""
        if event["event"] == "step" and event["step"] == "wait":
            wait = (event["reason"], event["container"], event["error"])
            if wait == self._waited_for:
                return None
            self._waited_for = wait
        what, text = _label_and_text(event)
        return plain.text(f"{event['ms']:>7.0f} ms  {what:<9} {text}".rstrip())


def _label_and_text(event: Json) -> tuple[str, str]:
    match event["event"]:
        case "accepted":
            return "accepted", f"{event['pod']}, container {event['container']}"
        case "queued":
            return "queued", "other restarts go first"
        case "joined":
            return "joined", f"a restart is already in progress because {event['message']}"
        case "decided":
            return "decided", _decided(event)
        case "begun":
            return "begun", f"restart {event['restart']} of {', '.join(event['containers'])}, in the journal"
        case "step":
            return event["step"], _step(event)
        case "freeing":
            left = event["left_bytes"] / _GIB
            return "freeing", f"{event['container']}: the driver is freeing memory, {left:.1f} GiB left"
        case "acted":
            return "acted", _took(event)
        case "settled":
            open_ = ", ".join(f"{check['name']} {check['state']}" for check in event["checks"] if not _passed(check))
            return "verified" if event["verified"] else "settled", "; ".join(filter(None, (_took(event), open_)))
        case "done":
            return "done" if event["ok"] else "FAILED", _because(event)
        case "missed":
            return "missed", f"{event['count']} events came faster than they were read"
        case other:
            return str(other), ""  # from a newer agent


def _decided(event: Json) -> str:
    text = f"{event['verb']}: {_because(event)}"
    if event["strategy"] is None:
        return text
    grace = f"{event['grace_seconds']:g} s grace" if event["grace_seconds"] else "SIGKILL"
    return f"{text}; strategy {event['strategy']}, {grace}"


def _step(event: Json) -> str:
    attempt = f" (attempt {event['attempt']})" if event["attempt"] is not None else ""
    end = f"failed: {event['error']}" if event["error"] else f"{event['took_ms']:.0f} ms"
    reason = f", {event['reason']}" if event["step"] == "wait" else ""
    return f"{event['container']}{attempt} {end}{reason}"


def _took(event: Json) -> str:
    phases = ", ".join(f"{name} {milliseconds:.0f}" for name, milliseconds in event["phases_ms"].items())
    took = f"{event['result']} in {event['total_ms']:.0f} ms" + (f" ({phases})" if phases else "")
    return "; ".join(filter(None, (took, event["detail"], *event.get("notes", ()))))


def _passed(check: Json) -> bool:
    return bool(check["state"] == verification.CheckState.PASSED.value)


def _because(event: Json) -> str:
    return f"{event['reason']}: {event['detail']}" if event["detail"] else str(event["reason"])
