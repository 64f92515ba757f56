"""Decide about containers that an agent left frozen and no agent resumes. Pure: listings in, dispositions out.

Of containers of one name only the newest continues, because kubelet considers no other: any older frozen container is
one that a restart would have ended (``agent.restart.swap``). So two never run, and no container is ended unless a newer
one has been started.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import steps


class Disposition(enum.Enum):
    """ENDS: a newer one of its name has been started. WAITS: that is not known yet, or an older one is ending."""

    GOES_ON = "GoesOn"
    ENDS = "Ends"
    WAITS = "Waits"


def dispositions(
    seen: Iterable[ContainerSummary], *, still: Collection[ContainerId]
) -> Mapping[ContainerId, Disposition]:
    """Return the disposition of each frozen container (``still``), given everything that the runtime lists.

    One that the runtime does not know continues: nothing else would ever release it.
    """
    views = [*seen]
    known = {view.id: view for view in views}
    return {each: _fate(known[each], views) if each in known else Disposition.GOES_ON for each in still}


def in_the_way(seen: Iterable[ContainerSummary], *, still: Collection[ContainerId]) -> tuple[ContainerId, ...]:
    """Return kubemend's successors that were created, but not started, after a frozen container (``still``).

    They must be removed first: kubelet would answer each with a container of its own.
    """
    views = [*seen]
    newest_first = sorted(views, key=lambda view: view.generation, reverse=True)
    first = {view.ref: view for view in newest_first if view.id in still}
    return tuple(
        view.id
        for view in views
        if view.state is ContainerState.CREATED
        and view.restart_id is not None
        and view.ref in first
        and view.generation > first[view.ref].generation
    )


def _fate(mine: ContainerSummary, views: Sequence[ContainerSummary]) -> Disposition:
    others = [view for view in views if view.ref == mine.ref and view.id != mine.id and view.state in steps.LIVE]
    newer = [view for view in others if view.generation > mine.generation]
    if any(view.state is ContainerState.RUNNING for view in newer):
        return Disposition.ENDS
    waits = newer or any(view.state is not ContainerState.CREATED for view in others)
    return Disposition.WAITS if waits else Disposition.GOES_ON
