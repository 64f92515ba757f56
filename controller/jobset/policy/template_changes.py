"""Compare a Job with its JobSet's current template, and decide how to apply a difference. Pure.

A Job has an annotation with hashes of its template's parts, grouped by the effort to change them. Only JobSets managed
by kubemend can change while they run: upstream's webhook forbids all changes except those that a resume merges.
"""

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec import quantities
from kubemend.controller.jobset.spec.model import NO_JSON, ChildJob, ReplicatedJob

_VERSION: Final = "v1"
"""Incremented when equal templates get another hash: Jobs with another version are left unchanged."""
_HASH: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)

_SCHEDULING: Final = ("nodeSelector", "tolerations", "schedulingGates")
_FLAGS: Final = frozenset({"hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty"})
_PERIODS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_NUMBERS: Final = frozenset({"hostPort", *_PERIODS})
_QUANTITIES: Final = frozenset({"requests", "limits"})
_DEFAULT: Final = ("protocol", "TCP")
"""A port's default: upstream's definition of JobSets fills it in on reading, kubemend's leaves it to the Job."""


class Change(enum.Enum):
    """How a Job is brought up to its template.

    RESET: its pods restart in place and read their ConfigMaps, Secrets and volumes again; if the JobSet has no rounds,
    it is recreated instead. RECREATE: delete and recreate the Job. This does not count as a restart.
    """

    NOTHING = "Nothing"
    RESET = "Reset"
    RECREATE = "Recreate"


@dataclass(frozen=True, slots=True)
class TemplateHash:
    """Hashes of the parts of a Job's template.

    ``placement``: the pods' labels and the fields that the scheduler uses, i.e. all that a resume merges into a
    suspended Job, except the pods' annotations. These are ``config``: by custom they contain a checksum of a ConfigMap.
    ``fixed``: the rest.
    """

    fixed: str
    placement: str
    config: str

    def __str__(self) -> str:
        return f"{_VERSION}:{self.fixed}:{self.placement}:{self.config}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the hashes in the annotation; None if it is invalid or has another version."""
        version, *parts = text.split(":")
        if version != _VERSION or len(parts) != 3 or not all(map(_HASH.fullmatch, parts)):
            return None
        return cls(*parts)


def made_of(replicated_job: ReplicatedJob) -> TemplateHash:
    """Return the hashes of a Job created now.

    It takes tens of microseconds or more: call it once per replicated Job.
    """
    template = replicated_job.pod_template
    meta, pod = template.get("metadata") or NO_JSON, template.get("spec") or NO_JSON
    job = {name: value for name, value in replicated_job.job_spec.items() if name not in ("suspend", "template")}
    rest = {name: value for name, value in pod.items() if name not in _SCHEDULING}
    scheduling = [pod.get(name) or None for name in _SCHEDULING]
    return TemplateHash(
        fixed=_hash([job, rest]),
        placement=_hash([meta.get("labels") or None, *scheduling]),
        config=_hash(meta.get("annotations") or None),
    )


def what_changed(wanted: TemplateHash, job: ChildJob) -> Change:
    """Return the change that brings ``job`` to ``wanted``. A Job without a valid annotation is left unchanged.

    So is one that has ended, unless it is being deleted: where the garbage collector comes first, the Job controller
    counts the pods that its deletion ends, and may mark it as failed for them (``backoffLimit``). A suspended Job gets
    most changes by its resume. If it needs others, it is recreated before it has any pods.
    """
    made = TemplateHash.parse(job.made_of)
    if made is None or (job.end is not None and not job.deleting):
        return Change.NOTHING
    if made.fixed != wanted.fixed:
        return Change.RECREATE
    if job.suspended:
        return Change.NOTHING
    if made.placement != wanted.placement:
        return Change.RECREATE
    return Change.NOTHING if made.config == wanted.config else Change.RESET


def noted_by_resume(wanted: TemplateHash, job: ChildJob) -> Mapping[str, str]:
    """Return the annotation of a Job that is resumed: it gets everything wanted, except for ``fixed``."""
    made = TemplateHash.parse(job.made_of)
    return {} if made is None else {naming.MADE_OF: str(replace(wanted, fixed=made.fixed))}


def noted_by_reset(wanted: TemplateHash) -> Mapping[str, str]:
    """Return the annotation of a Job whose reset was requested: from then on it counts as up to date."""
    return {naming.MADE_OF: str(wanted)}


def _hash(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return JSON that stays the same when a Go client reads and writes it, as Kueue does on admission.

    Go drops empty values (null, "", {}, [], and false and 0 where they are no pointers in ``core/v1``), adds some
    itself (``resources: {}``), and writes quantities in its own form (``1000m`` becomes ``1``).
    """
    if isinstance(value, Mapping):
        found = {name: _quantities(each) if name in _QUANTITIES else _plain(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if not _is_empty(name, each)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _is_empty(name: str, value: Any) -> bool:
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
