from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.reporters import status_conditions

Json = dict[str, Any]

_conditions = st.builds(
    Condition,
    type=st.sampled_from(["kubemend.io/A", "kubemend.io/B"]),
    status=st.sampled_from(ConditionStatus),
    reason=st.sampled_from(["R", "S"]),
    message=st.sampled_from(["", "m"]),
)
_by_type = st.lists(_conditions).map(lambda found: {condition.type: condition for condition in found})


def patched(conditions: list[Json], patch: Json | None) -> list[Json]:
    """Merge as the API server does: by type (patchMergeKey of PodCondition and NodeCondition), and field by field."""
    merged = {item["type"]: item for item in conditions}
    for item in (patch or {"status": {"conditions": []}})["status"]["conditions"]:
        merged[item["type"]] = {**merged.get(item["type"], {}), **item}
    return list(merged.values())


def healthy(reason: str = "AllGood") -> Condition:
    return Condition("kubemend.io/A", ConditionStatus.TRUE, reason)


def test_unchanged_conditions_need_no_patch() -> None:
    known = {"kubemend.io/A": healthy()}
    assert status_conditions.condition_patch(desired=known, known=known, uid="u", now=0) is None


def test_first_condition_has_its_time_and_the_uid() -> None:
    patch = status_conditions.condition_patch(desired={"kubemend.io/A": healthy()}, known={}, uid="u", now=86400.9)
    assert patch == {
        "metadata": {"uid": "u"},
        "status": {
            "conditions": [
                {
                    "type": "kubemend.io/A",
                    "status": "True",
                    "reason": "AllGood",
                    "message": "",
                    "lastTransitionTime": "1970-01-02T00:00:00Z",
                }
            ]
        },
    }


def test_new_reason_keeps_the_transition_time() -> None:
    patch = status_conditions.condition_patch(
        desired={"kubemend.io/A": healthy("Other")}, known={"kubemend.io/A": healthy()}, uid="u", now=0
    )
    assert patch is not None
    assert "lastTransitionTime" not in patch["status"]["conditions"][0]


def test_heartbeat_is_sent_without_changes() -> None:
    known = {"kubemend.io/A": healthy()}
    patch = status_conditions.condition_patch(desired=known, known=known, uid="u", now=60.0, heartbeat=True)
    assert patch is not None
    (sent,) = patch["status"]["conditions"]
    assert sent["lastHeartbeatTime"] == "1970-01-01T00:01:00Z"
    assert "lastTransitionTime" not in sent


@given(desired=_by_type, known=_by_type)
def test_patch_sets_desired_conditions_and_keeps_foreign_ones(
    desired: dict[str, Condition], known: dict[str, Condition]
) -> None:
    foreign = {"type": "Ready", "status": "True"}
    before = patched([foreign], status_conditions.condition_patch(desired=known, known={}, uid="u", now=1))
    patch = status_conditions.condition_patch(desired=desired, known=known, uid="u", now=2)
    after = {item["type"]: item for item in patched(before, patch)}
    assert after.pop("Ready") == foreign
    for kind, condition in {**known, **desired}.items():
        found = after[kind]
        assert (found["status"], found["reason"], found["message"]) == (
            condition.status.value, condition.reason, condition.message,
        )  # fmt: skip
        changed = kind in desired and (kind not in known or known[kind].status is not condition.status)
        assert found["lastTransitionTime"] == f"1970-01-01T00:00:0{2 if changed else 1}Z"


def test_message_has_no_control_characters_and_is_not_written_again_for_them() -> None:
    """A pod chooses a part of some messages, and kubectl prints them as they are."""
    made = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.TRUE, "Swapped", "no heartbeat in /a\x1b[2J\nb")
    assert made.message == "no heartbeat in /a [2J b"
    status = {"conditions": [{"type": made.type, "status": "True", "reason": "Swapped", "message": made.message}]}
    assert tuple(conditions.ours(status)) == (made,)
