"""Whether a Job is still what its JobSet's template says, and what to do where it is not. Pure.

A Job notes in an annotation what it was made of: hashes of its template's parts, by what a change of them takes. Only
JobSets of ours can change while they run: upstream's webhook forbids all but what a resume merges.
"""

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from controller.jobset import naming, quantities
from controller.jobset.model import NO_JSON, ChildJob, ReplicatedJob

_VERSION: Final = "v1"
"""Goes up when equal templates get another hash: Jobs of another version are left as they are."""
_HASH: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)

_SCHEDULING: Final = ("nodeSelector", "tolerations", "schedulingGates")
_FLAGS: Final = frozenset({"hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty"})
_PERIODS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_NUMBERS: Final = frozenset({"hostPort", *_PERIODS})
_QUANTITIES: Final = frozenset({"requests", "limits"})
_DEFAULT: Final = ("protocol", "TCP")
"""A port's: upstream's definition of JobSets fills it in when they are read, ours leaves it to the Job."""


class Change(enum.Enum):
    """What a Job needs to become what its template says.

    RESET: its pods restart in place and read their ConfigMaps, Secrets and volumes anew; where the JobSet has no
    rounds it is recreated instead. RECREATE: it is deleted and made anew; that is no restart and eats none.
    """

    NOTHING = "Nothing"
    RESET = "Reset"
    RECREATE = "Recreate"


@dataclass(frozen=True, slots=True)
class MadeOf:
    """What a Job is made of, as hashes of its template's parts.

    ``placement``: the pods' labels and what the scheduler goes by, all that a resume merges into a suspended Job, less
    the pods' annotations, which are ``config``: a checksum of a ConfigMap stands there by custom. ``fixed``: the rest.
    """

    fixed: str
    placement: str
    config: str

    def __str__(self) -> str:
        return f"{_VERSION}:{self.fixed}:{self.placement}:{self.config}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what the annotation tells; None where it does not tell it, or not in this version's words."""
        version, *parts = text.split(":")
        if version != _VERSION or len(parts) != 3 or not all(map(_HASH.fullmatch, parts)):
            return None
        return cls(*parts)


def made_of(replicated_job: ReplicatedJob) -> MadeOf:
    """Return what a Job made now would be made of. It takes tens of microseconds and more: once per replicated Job."""
    template = replicated_job.pod_template
    meta, pod = template.get("metadata") or NO_JSON, template.get("spec") or NO_JSON
    job = {name: value for name, value in replicated_job.job_spec.items() if name not in ("suspend", "template")}
    rest = {name: value for name, value in pod.items() if name not in _SCHEDULING}
    scheduling = [pod.get(name) or None for name in _SCHEDULING]
    return MadeOf(
        fixed=_hash([job, rest]),
        placement=_hash([meta.get("labels") or None, *scheduling]),
        config=_hash(meta.get("annotations") or None),
    )


def what_changed(wanted: MadeOf, job: ChildJob) -> Change:
    """Return what ``job`` needs to become what is ``wanted``. Nothing is done about a Job that does not tell.

    A suspended Job gets the rest by its resume; what that cannot mend, has it made anew before it has any pods.
    """
    made = MadeOf.parse(job.made_of)
    if made is None or job.deleting or job.end is not None:
        return Change.NOTHING
    if made.fixed != wanted.fixed:
        return Change.RECREATE
    if job.suspended:
        return Change.NOTHING
    if made.placement != wanted.placement:
        return Change.RECREATE
    return Change.NOTHING if made.config == wanted.config else Change.RESET


def noted_by_resume(wanted: MadeOf, job: ChildJob) -> Mapping[str, str]:
    """Return the annotation of a Job that is resumed: it gets all that is wanted, but what is fixed."""
    made = MadeOf.parse(job.made_of)
    return {} if made is None else {naming.MADE_OF: str(replace(wanted, fixed=made.fixed))}


def noted_by_reset(wanted: MadeOf) -> Mapping[str, str]:
    """Return the annotation of a Job whose reset has been asked for: from then on it is as wanted."""
    return {naming.MADE_OF: str(wanted)}


def _hash(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return JSON that is the same before and after a Go client has read and written it, as Kueue does to admit it.

    It drops what says nothing (null, "", {}, [], and false and 0 where they are no pointers in ``core/v1``), adds such
    itself (``resources: {}``), and writes quantities its own way (``1000m`` is ``1``).
    """
    if isinstance(value, Mapping):
        found = {name: _quantities(each) if name in _QUANTITIES else _plain(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if not _says_nothing(name, each)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _says_nothing(name: str, value: Any) -> bool:
    if value is False:
        return name in _FLAGS
    if value == 0 and isinstance(value, int):
        return name in _NUMBERS
    if (name, value) == _DEFAULT:
        return True
    return value is None or value in ("", {}, [])


def _quantities(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _plain(value)
    return {name: _quantity(each) for name, each in value.items()}


def _quantity(value: Any) -> str:
    amount = quantities.parse(value)
    return str(value) if amount is None else str(amount)
