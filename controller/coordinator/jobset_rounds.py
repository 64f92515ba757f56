"""The rounds of gangs whose JobSets kubemend manages: what each side needs to know of the other."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.coordinator import round_report
from kubemend.controller.jobset.spec import model, reading
from kubemend.controller.jobset.spec.model import JobSet, Refusal, RoundView
from kubemend.controller.jobsets.running import JobSets
from kubemend.controller.jobsets.views import GROUP
from kubemend.controller.model.faults import Cause, Fault
from kubemend.controller.model.members import Member, NodeName, Owner, PodUid
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import RestartChange, RestartChangeKind
from kubemend.controller.rounds import status
from kubemend.controller.rounds.states import Phase, Round

if TYPE_CHECKING:
    from kubemend.controller.jobset.policy.in_place import GangPolicy

_NONE: Final[Mapping[str, RoundView]] = {}
_OVER: Final = frozenset({Phase.DONE.value, Phase.DEGRADED.value, Phase.FAILED.value})


class RoundBook:
    """The rounds of JobSets' gangs, from Restart objects and from what this leader knows before the objects show it."""

    def __init__(self, *, news: Callable[[GangKey], None]) -> None:
        """``news`` is called with each gang whose rounds have changed."""
        self._news = news
        self._from_objects: dict[GangKey, dict[str, RoundView]] = {}
        self._own: dict[GangKey, dict[str, RoundView]] = {}
        self._refusals: dict[GangKey, Refusal] = {}
        self._owners: dict[str, str] = {}  # of the rounds that this leader has begun, until their ends

    def rounds(self, jobset: JobSet) -> tuple[RoundView, ...]:
        """Return the rounds of its gang by attempt, including those under way."""
        key = key_of(jobset)
        observed, own = self._from_objects.get(key, _NONE), self._own.get(key, _NONE)
        return tuple(sorted({**observed, **own}.values(), key=lambda each: (each.attempt, each.name)))

    def refusal(self, jobset: JobSet) -> Refusal | None:
        """Return the newest fault for which a round was refused for good."""
        return self._refusals.get(key_of(jobset))

    def begun(self, ref: RoundRef, cause: Cause, *, now: float, owner_uid: str = "") -> None:
        """Record that a round begins; its object may appear later. ``owner_uid`` is the JobSet's."""
        seen = RoundView(
            name=ref.name,
            attempt=ref.attempt,
            counted=isinstance(cause, Fault),
            started_at=now,
            reason=round_report.code_of(cause),
            message=round_report.message_of(cause),
            owner_uid=owner_uid,
        )
        if ref.gang.kind == model.KIND:
            self._owners[ref.id] = owner_uid
        self._put(ref, seen)

    def ended(self, round_: Round) -> None:
        """Record that a round is over; its object shows that later.

        Its JobSet is the one with which it began: another one of the same name may exist now.
        """
        ref = round_.ref
        resumed = self._from_objects.get(ref.gang, _NONE).get(ref.id)
        owner_uid = self._owners.pop(ref.id, resumed.owner_uid if resumed is not None else "")
        seen = view(ref.name, ref.attempt, status.render(round_), started_at=round_.started_at)
        self._put(ref, replace(seen, owner_uid=owner_uid))

    def refused(self, gang: GangKey, refusal: Refusal) -> None:
        """Record that a round is refused for good."""
        self._refusals[gang] = refusal
        self._news(gang)

    def restart_changed(self, change: RestartChange) -> None:
        """Handle a change of a Restart object from the API server."""
        restart = change.restart
        if restart.ref is None or restart.ref.gang.kind != model.KIND:
            return
        key, of_gang = restart.ref.gang, self._from_objects.setdefault(restart.ref.gang, {})
        if change.kind is RestartChangeKind.GONE:
            of_gang.pop(restart.id, None)
            self._drop(restart.ref)
        else:
            of_gang[restart.id] = _of(restart)
            if restart.is_finished:
                self._drop(restart.ref)
                self._owners.pop(restart.id, None)
        if not of_gang:
            del self._from_objects[key]
        self._news(key)

    def new_term(self) -> None:
        """Forget what only a previous term of this replica knew."""
        self._own.clear()
        self._refusals.clear()
        self._owners.clear()

    def forget(self, gang: GangKey) -> None:
        """Forget a gang whose JobSet no longer exists."""
        self._own.pop(gang, None)
        self._refusals.pop(gang, None)

    def _drop(self, ref: RoundRef) -> None:
        own = self._own.get(ref.gang, {})
        own.pop(ref.id, None)
        if not own:
            self._own.pop(ref.gang, None)

    def _put(self, ref: RoundRef, seen: RoundView) -> None:
        if ref.gang.kind == model.KIND:
            self._own.setdefault(ref.gang, {})[ref.id] = seen
            self._news(ref.gang)


class OurJobSets:
    """The JobSets as rounds see them (``controller.coordinator.dependencies.JobSets``)."""

    def __init__(self, make: Callable[[RoundBook], JobSets]) -> None:
        """``make`` returns the component that runs the JobSets, given their rounds."""
        self.book = RoundBook(news=lambda gang: self._jobsets.news(gang.namespace, gang.name))
        self._jobsets = make(self.book)
        self._jobsets.subscribe(self._changed)
        self._listeners: list[Callable[[GangKey], None]] = []

    async def run(self) -> None:
        """Run the managed JobSets indefinitely."""
        self.book.new_term()
        await self._jobsets.run()

    async def wait_known(self) -> None:
        """Wait until the existing JobSets are known."""
        await self._jobsets.wait_known()

    def policy(self, gang: GangKey) -> "GangPolicy | None":
        """Return the limits of a gang's JobSet for its rounds; None if it sets none, as kubemend does not manage it.

        A JobSet that upstream's controller restarts in place is closed, and so is one that cannot be read: it may be
        suspended, or have used up its restarts.
        """
        if gang.kind != model.KIND:
            return None
        jobset = self._of(gang)
        is_invalid = self._jobsets.is_invalid(gang.namespace, gang.name)
        if jobset is None and not is_invalid and not self._jobsets.is_restarted_elsewhere(gang.namespace, gang.name):
            return None
        from kubemend.controller.jobset.policy import (
            in_place,  # imported only once there is a JobSet that needs it
        )

        if jobset is None:
            return in_place.GangPolicy(
                closed=in_place.Closed.INVALID if is_invalid else in_place.Closed.RESTARTED_ELSEWHERE
            )
        return in_place.policy(self._jobsets.observe(jobset))

    def owner(self, gang: GangKey) -> Owner | None:
        """Return the JobSet of a gang; the gang's Restart objects are deleted with it."""
        jobset = self._of(gang)
        return Owner(GROUP, model.KIND, jobset.name, jobset.uid) if jobset is not None else None

    def newest_attempt(self, gang: GangKey) -> int:
        """Return the number of the newest round in the JobSet's status; 0 if it has none."""
        jobset = self._of(gang)
        return (jobset.status.current_in_place or 0) if jobset is not None else 0

    def is_given_up(self, member: Member) -> bool:
        """Return whether a member's index has failed for good (``backoffLimitPerIndex``): it gets no new pod."""
        job, slash, index = member.slot.rpartition("/")
        if not slash or member.gang.kind != model.KIND:
            return False
        found = self._jobsets.job(member.gang.namespace, member.gang.name, job)
        if found is None or not found.failed_indexes:
            return False
        return reading.is_failed_index(index, found.failed_indexes)

    def begun(self, ref: RoundRef, cause: Cause, *, now: float) -> None:
        """Record that a round begins; its object may appear later."""
        jobset = self._of(ref.gang)
        if jobset is not None:
            self.book.begun(ref, cause, now=now, owner_uid=jobset.uid)

    def ended(self, round_: Round) -> None:
        """Record that a round is over; its object shows that later."""
        self.book.ended(round_)
        if self._of(round_.ref.gang) is None:
            self.book.forget(round_.ref.gang)  # its deletion comes no more

    def refused(self, gang: GangKey, refusal: Refusal) -> None:
        """Record that a round is refused for good."""
        self.book.refused(gang, refusal)

    def left(self, gang: GangKey, *, node: NodeName, code: str, pod: PodUid) -> None:
        """Keep new pods off a node, because a member is recreated on account of one of its devices."""
        if self._of(gang) is not None:
            self._jobsets.left(node, code=code, pod=pod)

    def subscribe(self, listener: Callable[[GangKey], None]) -> Callable[[], None]:
        """Call ``listener`` when a policy may have changed; it must not block.

        Returns the function that unsubscribes.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _of(self, gang: GangKey) -> JobSet | None:
        return self._jobsets.find(gang.namespace, gang.name) if gang.kind == model.KIND else None

    def _changed(self, namespace: str, name: str) -> None:
        gang = GangKey(namespace, model.KIND, name)
        if self._of(gang) is None:
            self.book.forget(gang)
        for listener in tuple(self._listeners):
            listener(gang)


def key_of(jobset: JobSet) -> GangKey:
    """Return the gang formed by the pods of a JobSet."""
    return GangKey(jobset.namespace, model.KIND, jobset.name)


def view(name: str, attempt: int, state: Mapping[str, Any], *, started_at: float) -> RoundView:
    """Return a round from its status (``controller.rounds.status``)."""
    trigger, is_over = state.get("trigger") or {}, state.get("phase") in _OVER
    restarted = state.get("phase") == Phase.DONE.value
    reason, message = str(trigger.get("code") or ""), str(trigger.get("message") or "")
    if is_over and not restarted:
        reason, message = _failure(state)
    return RoundView(
        name=name,
        attempt=attempt,
        counted=trigger.get("kind") != status.REQUEST,
        started_at=started_at,
        ended_at=_moment(state.get("completionTime"), default=started_at) if is_over else None,
        restarted=restarted,
        reason=reason,
        message=message,
        seconds=(state.get("timings") or {}).get("totalMilliseconds", 0) / 1000,
    )


def _of(restart: Restart) -> RoundView:
    started_at = _moment(restart.status.get("startTime"), default=restart.created_at)
    seen = view(restart.name, restart.attempt, restart.status, started_at=started_at)
    return replace(seen, owner_uid=restart.owner_uid)


def _failure(state: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a round did not bring all members back: it was cancelled, or the first failed member's reason."""
    for each in state.get("conditions") or ():
        if each.get("type") == status.CANCELLED and each.get("status") == "True":
            return status.CANCELLED, str(each.get("message") or "")
    for each in state.get("failures") or ():
        reason, where = str(each.get("reason") or ""), str(each.get("member") or "")
        return reason, f"{where}: {each.get('message') or reason}".removeprefix(": ")
    return str(state.get("phase")), ""


def _moment(text: str | None, *, default: float) -> float:
    return float(timestamps.unix(text)) if text else default
