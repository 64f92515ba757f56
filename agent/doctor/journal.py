"""The journal: restarts in it that no agent takes up again."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.doctor.checks import Check, Result
from agent.history import quarantine
from agent.history.quarantine import Quarantined
from agent.history.store import FILE
from common import own_thread

NAME: Final = "journal"

_SHOWN: Final = 3
_MOST: Final = 1000  # counted
_LONGEST: Final = 160  # characters of a reason
_MEND: Final = (
    "look whether the pod is as it should be (kubectl delete pod always helps), and report what work.failed and "
    "restart.quarantined in the agent's log say"
)


async def quarantined(state_dir: Path) -> Sequence[Check]:
    """Say which restarts are quarantined: their replay failed again and again."""
    return (await own_thread.once(lambda: _quarantined(state_dir / FILE), name="doctor"),)


def _quarantined(path: Path) -> Check:
    try:
        found = quarantine.read(path, most=_MOST)
    except FileNotFoundError:
        return Check(NAME, Result.NOT_NEEDED, f"no agent has kept one at {path} yet")
    except sqlite3.Error as error:
        mend = "see the agent's log: it cannot use the file either, or is about to; ask again"
        return Check(NAME, Result.UNKNOWN, f"{path} cannot be read: {error}", mend)
    if not found:
        return Check(NAME, Result.OK, f"no restart is quarantined in {path}")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    told = "; ".join(map(_told, found[:_SHOWN])) + more
    return Check(NAME, Result.WARN, f"quarantined, and not taken up by any agent again: {told}", _MEND)


def _told(each: Quarantined) -> str:
    why = f" ({' '.join(each.why.split())[:_LONGEST]})" if each.why else ""
    return f"{each.target or 'a container'} of restart {each.restart}{why}"
