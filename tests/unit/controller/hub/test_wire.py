"""Parts of messages, serialized once and added together."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import ports


@given(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True)), st.integers(min_value=1, max_value=2**64 - 1))
def test_stop_in_two_parts_is_one_message_with_epoch(uids: list[str], epoch: int) -> None:
    orders = [pb.Order(pod=pb.Pod(uid=uid)) for uid in uids]
    common = pb.Stop(round="train/llm-1", attempt=3, hold_seconds=30)
    head = ports.encode(pb.HubMessage(stop=common))
    own = ports.encode(pb.HubMessage(stop=pb.Stop(orders=orders)))
    whole = pb.Stop()
    whole.CopyFrom(common)
    whole.orders.extend(orders)
    assert pb.HubMessage.FromString(head + own + ports.stamp(epoch)) == pb.HubMessage(epoch=epoch, stop=whole)


def test_hubs_epoch_overrides_messages_epoch() -> None:
    data = ports.encode(pb.HubMessage(epoch=9, sync=pb.Sync())) + ports.stamp(4)
    assert pb.HubMessage.FromString(data) == pb.HubMessage(epoch=4, sync=pb.Sync())
