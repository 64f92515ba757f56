"""A node may report only about its own pods; its messages about unknown pods are deferred."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import pod_authorization, streams
from kubemend.controller.hub.pod_authorization import Claim
from kubemend.controller.model.members import NodeName, PodUid
from tests.unit.controller.hub import words

_HERE = NodeName("node-1")
_BOUND = {PodUid("mine"): _HERE, PodUid("mine-too"): _HERE, PodUid("theirs"): NodeName("node-2")}
_UIDS = ["mine", "mine-too", "theirs", "new", "newer"]


@pytest.mark.parametrize(("uid", "claim"), [("mine", Claim.OURS), ("theirs", Claim.FOREIGN), ("new", Claim.UNKNOWN)])
def test_judge_compares_pods_node(uid: str, claim: Claim) -> None:
    assert pod_authorization.judge(uid, node=_HERE, node_of=_BOUND.get) is claim


@pytest.mark.parametrize("message", [words.fault("x"), words.result("x")])
def test_subject_is_the_messages_pod(message: pb.AgentMessage) -> None:
    assert pod_authorization.subject(message) == "x"


@given(st.lists(st.sampled_from(_UIDS)))
def test_sort_hello_loses_nothing(uids: list[str]) -> None:
    hello = words.hello(*uids).hello
    parts = pod_authorization.sort_hello(hello, node=_HERE, node_of=_BOUND.get)
    assert [result.pod.uid for result in parts.hello.results] == [uid for uid in uids if uid.startswith("mine")]
    assert [pod_authorization.subject(message) for message in parts.unknown] == [
        uid for uid in uids if uid.startswith("new")
    ]
    assert parts.foreign == uids.count("theirs")
    assert (parts.hello.node, parts.hello.epoch) == (hello.node, hello.epoch)


def test_foreign_samples_are_counted_and_unknown_ones_dropped() -> None:
    ours, foreign = pod_authorization.sort_samples(
        words.samples("mine", "theirs", "new").samples, node=_HERE, node_of=_BOUND.get
    )
    assert ([sample.pod_uid for sample in ours.devices], foreign) == (["mine"], 1)


def test_deferred_messages_keep_order_and_newest_of_each_kind() -> None:
    pods = streams.UnknownPods()
    fault, other = words.fault("a", id="1"), words.fault("a", id="2")
    older, newer, of_another_round = words.result("a"), words.result("a"), words.result("a", round="train/llm-2")
    newer.result.phase = pb.StepResult.RUNNING
    for message in (older, fault, words.result("b"), other, newer, of_another_round):
        assert pods.keep(message, now=0.0) == 0
    assert pods.pop("a") == [fault, other, newer, of_another_round]
    assert pods.pop("a") == []
    assert pods.pop("b") == [words.result("b")]


def test_deferred_messages_are_limited() -> None:
    pods = streams.UnknownPods()
    lost = sum(pods.keep(words.result(f"uid-{number}"), now=0.0) for number in range(streams.MOST_DEFERRED + 10))
    assert lost == 10
    assert pods.pop("uid-9") == []
    assert pods.pop("uid-10") == [words.result("uid-10")]


@pytest.mark.parametrize(("after", "lost"), [(streams.DEFERRED_SECONDS - 1.0, 1), (streams.DEFERRED_SECONDS, 0)])
def test_message_about_a_pod_that_has_long_been_deleted_is_no_loss(after: float, lost: int) -> None:
    """Each counts as a refusal, which alerts: a stream that lasts for months sees many such pods."""
    pods = streams.UnknownPods()
    for number in range(streams.MOST_DEFERRED):
        pods.keep(words.result(f"uid-{number}"), now=0.0)
    assert pods.keep(words.result("new"), now=after) == lost
    assert pods.pop("uid-0") == []
    assert pods.pop("new") == [words.result("new")]


def test_fault_is_new_once_until_next_hello() -> None:
    reported = streams.ReportedFaults()
    assert [reported.is_new(id_) for id_ in ("a", "b", "a")] == [True, True, False]
    reported.clear()
    assert reported.is_new("a")
