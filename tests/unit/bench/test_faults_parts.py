"""The tools of the fault suite: a clock that jumps, and a relay that imitates other releases."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.faults import crowd
from bench.faults.looking import Log
from bench.faults.relay import Accent
from bench.faults.wallclock import WallClock
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

HOUR = 3600.0
TELL = "import time; input(); print(time.time(), time.monotonic(), flush=True); input(); print(time.time(), flush=True)"


def test_only_the_own_clock_of_a_process_jumps(tmp_path: Path) -> None:
    with WallClock.made(tmp_path) as clock:
        child = subprocess.Popen(
            [sys.executable, "-c", TELL],
            env={**os.environ, **clock.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            clock.set(ahead=HOUR)
            before = time.time(), time.monotonic()
            child.stdin.write("\n")
            child.stdin.flush()
            reported = [float(each) for each in child.stdout.readline().split()]
            after = time.time(), time.monotonic()
            assert before[0] + HOUR <= reported[0] <= after[0] + HOUR
            assert before[1] <= reported[1] <= after[1]
            clock.set(ahead=-HOUR)
            child.stdin.write("\n")
            child.stdin.flush()
            assert float(child.stdout.readline()) < before[0]


def heard(accent: Accent, message: pb.HubMessage) -> list[pb.HubMessage]:
    return [pb.HubMessage.FromString(each) for each in accent.of(message)]


@pytest.mark.parametrize("protocol", [None, 1, 2])
def test_welcome_has_the_protocol_of_the_accent(protocol: int | None) -> None:
    (welcome,) = heard(Accent(protocol=protocol), pb.HubMessage(epoch=7, welcome=pb.Welcome(leader="a", protocol=1)))
    assert welcome == pb.HubMessage(epoch=7, welcome=pb.Welcome(leader="a", protocol=protocol or 0))


def test_next_release_adds_unknown_fields_and_loses_no_known_ones() -> None:
    said = pb.HubMessage(epoch=7, release=pb.Release(round="team/r1", pod_uids=["uid-0"]))
    known, unknown = heard(Accent(protocol=2, news=True), pb.HubMessage.FromString(said.SerializeToString()))
    assert known.SerializeToString() != said.SerializeToString()
    known.DiscardUnknownFields()
    assert known == said
    assert (unknown.epoch, unknown.WhichOneof("body")) == (7, None)
    assert unknown != pb.HubMessage(epoch=7)


def test_log_is_read_from_its_end_and_skips_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    path.write_text(json.dumps({"event": "restart.acted", "restart": "before"}) + "\n")
    log = Log(path)
    with path.open("a") as file:
        file.write("Traceback\n")
        file.write(json.dumps({"event": "restart.acted", "restart": "r1"}) + "\n")
        file.write(json.dumps({"event": "restart.finished", "restart": "r1"}) + "\n")
        file.write('{"event": "restart.ac')
    assert [each["restart"] for each in log.events("restart.acted")] == ["r1"]
    assert log.events("restart.acted", restart="r2") == []


def test_half_of_a_crowd_comes_from_one_address_and_the_others_from_all() -> None:
    wanted = crowd.Wanted.of(crowd.Wanted("here", 1, 400, ("a", "b", "c", "d")).line())
    assert Counter(wanted.address(number) for number in range(400)) == {"a": 250, "b": 50, "c": 50, "d": 50}
