"""What becomes of containers that stand still for an agent that is gone for good. Pure: what is seen in, fates out.

Of containers of one name only the newest goes on, for kubelet looks at no other: whatever is older, and stands still
for us, is what a restart would have ended (``agent.restart.swap``). So two never run, and nothing is ended but for a
newer one that has been started.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

from agent.model.workloads import ContainerId, ContainerState, ContainerView
from agent.restart import steps


class Fate(enum.Enum):
    """ENDS: a newer one of its name has been started. WAITS: that cannot be told yet, or an older one is ending."""

    GOES_ON = "GoesOn"
    ENDS = "Ends"
    WAITS = "Waits"


def fates(seen: Iterable[ContainerView], *, still: Collection[ContainerId]) -> Mapping[ContainerId, Fate]:
    """Return what becomes of each container that stands ``still``, given all that the runtime shows.

    One that the runtime does not know goes on: nobody else would ever let it.
    """
    views = [*seen]
    known = {view.id: view for view in views}
    return {each: _fate(known[each], views) if each in known else Fate.GOES_ON for each in still}


def in_the_way(seen: Iterable[ContainerView], *, still: Collection[ContainerId]) -> tuple[ContainerId, ...]:
    """Return the successors of ours that have been created, and not started, after one that stands ``still``.

    They are to be removed first: kubelet would answer each with a container of its own.
    """
    views = [*seen]
    first = {view.ref: view for view in sorted(views, key=_age, reverse=True) if view.id in still}
    return tuple(
        view.id
        for view in views
        if view.state is ContainerState.CREATED
        and view.restart_id is not None
        and view.ref in first
        and _age(view) > _age(first[view.ref])
    )


def _fate(mine: ContainerView, views: Sequence[ContainerView]) -> Fate:
    others = [view for view in views if view.ref == mine.ref and view.id != mine.id and view.state in steps.LIVE]
    newer = [view for view in others if _age(view) > _age(mine)]
    if any(view.state is ContainerState.RUNNING for view in newer):
        return Fate.ENDS
    older = [view for view in others if view not in newer and view.state is not ContainerState.CREATED]
    return Fate.WAITS if newer or older else Fate.GOES_ON


def _age(view: ContainerView) -> tuple[int, int]:
    return view.created_at, view.attempt
