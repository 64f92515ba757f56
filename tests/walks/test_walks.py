"""Each walk reaches its end, through few modules."""

from pathlib import Path
from typing import Final

import pytest

from tests.walks import actions
from tests.walks.recording import recording

MOST: Final = {
    "kernel log line to pod condition": 20,
    "fault to swap": 25,
    "Stop to cgroup freeze": 20,
    "Release to thaw": 8,
    "Job failed to JobSet restart": 20,
}
"""How many modules each walk may pass. Nothing should raise a number."""


@pytest.mark.parametrize("name", actions.WALKS)
async def test_walk_reaches_its_end_through_few_modules(name: str, tmp_path: Path) -> None:
    with recording() as recorder:
        await actions.WALKS[name](recorder, tmp_path)
    assert 0 < len(recorder.passes) <= MOST[name], recorder.passes
