"""Check the journal for restarts that no agent resumes."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubemend.agent.clients.journal import quarantine
from kubemend.agent.clients.journal.quarantine import Quarantined
from kubemend.agent.clients.journal.store import FILE
from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import blocking

NAME: Final = "journal"

_SHOWN: Final = 3
_MOST: Final = 1000  # counted
_LONGEST: Final = 160  # characters of a reason
_HINT: Final = (
    "check the pod's state (kubectl delete pod always helps), and report work.failed and "
    "restart.quarantined from the agent's log"
)


async def quarantined(state_dir: Path) -> Sequence[Check]:
    """Check for quarantined restarts: those whose replay failed repeatedly."""
    return (await blocking.once(lambda: _quarantined(state_dir / FILE), name="doctor"),)


def _quarantined(path: Path) -> Check:
    try:
        found = quarantine.read(path, most=_MOST)
    except FileNotFoundError:
        return Check(NAME, Result.NOT_NEEDED, f"no agent has created one at {path} yet")
    except sqlite3.Error as error:
        hint = "see the agent's log, because the agent may have the same problem with the file; run doctor again"
        return Check(NAME, Result.UNKNOWN, f"{path} cannot be read: {error}", hint)
    if not found:
        return Check(NAME, Result.OK, f"no restart is quarantined in {path}")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    listed = "; ".join(map(_described, found[:_SHOWN])) + more
    return Check(NAME, Result.WARN, f"quarantined, and not resumed by any agent: {listed}", _HINT)


def _described(each: Quarantined) -> str:
    why = f" ({' '.join(each.why.split())[:_LONGEST]})" if each.why else ""
    return f"{each.target or 'a container'} of restart {each.restart}{why}"
