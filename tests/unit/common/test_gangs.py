"""Gangs of pods, by their labels."""

from kubemend.common import gangs
from kubemend.common.gangs import GangKey

OF_A_GROUP = {gangs.LWS_NAME: "llm", gangs.LWS_GROUP: "1"}


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    assert gangs.key("team", OF_A_GROUP) == GangKey("team", gangs.LWS, "llm-1")


def test_a_gang_label_takes_precedence_over_a_group() -> None:
    assert gangs.key("team", {**OF_A_GROUP, gangs.GANG: "mine"}) == GangKey("team", "Gang", "mine")
    assert gangs.key("team", {**OF_A_GROUP, gangs.GANG: gangs.ALONE}) is None


def test_a_group_whose_leader_has_no_name_for_a_label_is_no_gang() -> None:
    longest = {gangs.LWS_NAME: "x" * 61, gangs.LWS_GROUP: "1"}
    assert gangs.key("team", longest) == GangKey("team", gangs.LWS, f"{'x' * 61}-1")
    assert gangs.key("team", {**longest, gangs.LWS_GROUP: "10"}) is None
