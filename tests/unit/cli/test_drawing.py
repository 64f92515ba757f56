"""A chart as text and as a picture."""

import dataclasses
import xml.etree.ElementTree as ET

import click
import pytest

from kubemend.cli import bars, bars_text, palette
from kubemend.cli.bars import Bar, Chart
from kubemend.controller.restarts import objects
from kubemend.controller.rounds.timeline import Segment
from tests.unit.cli import builders

TEXT = """\
train, attempt 3: Done in 340 ms
Xid79 in train-2 on node-b; InPlace (MemberFailed); 3 members
GPU 3 has fallen off the bus
no new container ran before all old ones were dead

           ▼ fault
               ▼ decided 40 ms
               all old dead 240 ms ▼
                       last one runs 340 ms ▼
  train-0      ··▓▓▓▓▒▒▒███████████▬▬▬▬▬▬▬▬▬▬    340 ms
✖ train-2      ▓▓▓▓▒▒▒███░░░░░░░░░░▬▬▬▬▬         290 ms
  train-1      ███████████████░░░░░▬▬            260 ms

· order in transit  ▓ create  ▒ start  █ stop  ░ successor held until all old are dead  ▬ released  ✖ fault"""

CHART = bars.chart(objects.parse(builders.restart()))
WIDTH = 34 + len("train-0") + 14
"""So that a column is 10 ms."""


def many(number: int) -> Chart:
    drawn = [
        Bar(f"train-{each}", "node", (Segment("stop", 40, 240), Segment("release", 240, 340 - each)), 340.0 - each)
        for each in range(number)
    ]
    return dataclasses.replace(CHART, bars=tuple(drawn), members=500)


def test_a_bar_for_each_member_and_a_mark_for_what_they_share() -> None:
    drawn = bars_text.draw(CHART, width=WIDTH, colour=False)
    assert [line.rstrip() for line in drawn.splitlines()] == TEXT.splitlines()


def test_colours_change_nothing_but_the_colours() -> None:
    coloured = bars_text.draw(CHART, width=100, colour=True)
    assert coloured != bars_text.draw(CHART, width=100, colour=False)
    assert click.unstyle(coloured) == bars_text.draw(CHART, width=100, colour=False)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_bars_are_scaled_to_the_terminal(width: int) -> None:
    longest = next(
        line for line in bars_text.draw(CHART, width=width, colour=False).splitlines() if "train-0  " in line
    )
    assert len(longest) == width


def test_bars_are_distinguishable_in_a_narrow_terminal() -> None:
    assert "▬" in bars_text.draw(CHART, width=10, colour=False)


def test_long_names_keep_their_distinguishing_ends() -> None:
    long = dataclasses.replace(CHART.bars[0], member="a-very-long-name-of-a-training-run-workers-0-17-x8f2q")
    drawn = bars_text.draw(dataclasses.replace(CHART, bars=(long,)), width=100, colour=False)
    assert "  …me-of-a-training-run-workers-0-17-x8f2q  " in drawn


def test_failed_member_has_its_reason() -> None:
    failed = dataclasses.replace(CHART.bars[0], ran_at=None, failure="Stuck: does not end")
    drawn = bars_text.draw(dataclasses.replace(CHART, bars=(failed,)), width=100, colour=False)
    assert "failed  Stuck: does not end" in drawn


def test_those_that_are_left_out_are_counted() -> None:
    assert "460 faster members are not shown" in bars_text.draw(many(40), width=100, colour=False)


def test_steps_look_different_from_each_other_and_always_the_same() -> None:
    known = [palette.ink(step) for step in ("order", "recreate", "stop", "create", "start", "held", "release")]
    assert len({ink.colour for ink in known}) == len({ink.glyph for ink in known}) == len(known)
    assert palette.ink("something-new") == palette.ink("something-new")
    assert palette.ink("something-new") not in known


class TestPicture:
    """With matplotlib, which is an extra."""

    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self) -> None:
        pytest.importorskip("matplotlib", reason="needs the extra plots")

    def draw(self, chart: Chart) -> str:
        from kubemend.cli import bars_svg

        return bars_svg.draw(chart)

    def words(self, chart: Chart) -> list[str]:
        texts = ET.fromstring(self.draw(chart)).iter("{http://www.w3.org/2000/svg}text")
        return ["".join(each.itertext()) for each in texts]

    def test_it_is_the_same_bytes_whenever_it_is_drawn(self) -> None:
        assert self.draw(CHART) == self.draw(CHART)
        assert "<dc:date>" not in self.draw(CHART)

    def test_texts_of_the_picture_can_be_searched(self) -> None:
        words = self.words(CHART)
        assert "train, attempt 3: Done in 340 ms" in words
        assert "all old dead: 240 ms" in [word.strip() for word in words]
        assert {"order in transit", "stop", "create", "start", "released", "fault"} <= set(words)
        assert {"train-0  node-a", "train-1  node-a", "train-2  node-b"} <= set(words)
        assert "GPU 3 has fallen off the bus" in words

    def test_each_step_has_its_colour(self) -> None:
        drawn = self.draw(CHART).lower()
        assert all(palette.ink(step).colour.lower() in drawn for step in CHART.steps)

    def test_with_hundreds_of_members_it_grows_no_further_than_its_bars(self) -> None:
        height = float(ET.fromstring(self.draw(many(40))).attrib["height"].removesuffix("pt"))
        assert 600 < height < 1200
        assert "the 40 slowest members; 460 faster ones are not shown" in self.words(many(40))

    def test_failed_member_is_named_without_math_parsing(self) -> None:
        failed = dataclasses.replace(CHART.bars[0], ran_at=None, failure="Stuck: $1 of $2 do not end")
        words = self.words(dataclasses.replace(CHART, bars=(failed,)))
        assert "✖ train-0: Stuck: $1 of $2 do not end" in words
        assert "✖ Stuck" in [word.strip() for word in words]

    def test_a_chart_of_a_bar_without_times_can_be_drawn(self) -> None:
        nothing = Bar("train-0", "", (), None, failure="NodeLost")
        assert "✖ NodeLost" in [word.strip() for word in self.words(dataclasses.replace(CHART, bars=(nothing,)))]
