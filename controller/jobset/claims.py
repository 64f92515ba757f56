"""Claims that are there already: whether they are what a JobSet asks for. Pure.

Upstream uses whatever claim has the name (``createPVCsIfNecessary``), and so do we: but it is told.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from controller.jobset import conditions, naming, quantities
from controller.jobset.draft import Draft
from controller.jobset.model import JobSet
from controller.jobset.plan import ClaimSpec, EventType, World

OTHER_SPEC: Final = "ClaimHasAnotherSpec"
_AS_ASKED: Final = "ClaimsAsAsked"
_AS_ASKED_MESSAGE: Final = "all claims are what the JobSet asks for"
_LONGEST_NAME: Final = 253
_MOST_TOLD: Final = 5


def read(spec: object) -> ClaimSpec:
    """Return what is compared of a PersistentVolumeClaim's spec."""
    given = _dict(spec)
    modes = given.get("accessModes")
    requests = _dict(_dict(given.get("resources")).get("requests"))
    source = _dict(given.get("dataSourceRef") or given.get("dataSource"))
    return ClaimSpec(
        access=frozenset(str(each)[:_LONGEST_NAME] for each in (modes[:16] if isinstance(modes, list) else ())),
        storage_class=_text(given.get("storageClassName")),
        mode=_text(given.get("volumeMode")) or "Filesystem",
        volume=_text(given.get("volumeName")) or None,
        storage=quantities.parse(requests.get("storage")) if "storage" in requests else None,
        selector=_digest(given.get("selector")),
        source=_digest([source.get("kind"), source.get("name")]) if source else None,
    )


def differences(asked: ClaimSpec, there: ClaimSpec) -> tuple[str, ...]:
    """Return the fields in which a claim is not what is asked for.

    What is not asked for may be anything, for the API server and the binding fill it in; and one may have grown.
    """
    differing = {
        "accessModes": asked.access != there.access,
        "storageClassName": asked.storage_class is not None and asked.storage_class != there.storage_class,
        "volumeMode": asked.mode != there.mode,
        "volumeName": asked.volume is not None and asked.volume != there.volume,
        "resources.requests.storage": (
            asked.storage is not None and there.storage is not None and there.storage < asked.storage
        ),
        "selector": asked.selector is not None and asked.selector != there.selector,
        "dataSource": asked.source is not None and asked.source != there.source,
    }
    return tuple(field for field, differs in differing.items() if differs)


def names(jobset: JobSet) -> dict[str, Any]:
    """Return the names of the claims that a JobSet asks for, with what it asks for."""
    templates = (each for policy in jobset.spec.claim_policies for each in policy.templates)
    return {
        naming.claim_name(jobset.name, str((each.get("metadata") or {}).get("name"))): each.get("spec")
        for each in templates
    }


def say(world: World, *, draft: Draft) -> None:
    """Say which claims are not what is asked for; or that they are by now. One that always was right says nothing."""
    told = tuple(_told(world.jobset, world.claim_specs))
    if told:
        more = f" (and {len(told) - _MOST_TOLD} more)" if len(told) > _MOST_TOLD else ""
        message = (
            f"used as they are: {'; '.join(told[:_MOST_TOLD])}{more}; delete them while no pod uses them, "
            "or ask for what is there"
        )
        draft.say(conditions.CLAIMS, is_so=False, reason=OTHER_SPEC, message=message, event=EventType.WARNING)
    elif draft.status.condition(conditions.CLAIMS) is not None:
        draft.say(conditions.CLAIMS, is_so=True, reason=_AS_ASKED, message=_AS_ASKED_MESSAGE)


def _told(jobset: JobSet, there: Mapping[str, ClaimSpec]) -> list[str]:
    told = []
    for name, asked in names(jobset).items():
        found = there.get(name)
        if found is not None and (fields := differences(read(asked), found)):
            told.append(f"claim {name} has another {', '.join(fields)}")
    return told


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value[:_LONGEST_NAME] if isinstance(value, str) else None


def _digest(value: object) -> str | None:
    if value is None:
        return None
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
