"""Names of Services and claims that no Informer reports are kept for a while only."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubemend.common.kube import informer
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.jobset.children import volume_claims
from kubemend.controller.jobsets import names
from kubemend.controller.jobsets.names import Named, Names

SPEC = volume_claims.read({"accessModes": ["ReadWriteOnce"]})


class Watch:
    """Stand in for the Informer of labelled objects."""

    def subscribe(self, listener: Any) -> None:
        self.listener = listener

    def reports(self, kind: ChangeKind, name: str) -> None:
        self.listener(informer.Change(kind, f"uid-{name}", Named("team", name, "js")))


async def test_found_names_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, watch = 0.0, Watch()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now))
    known = Names(cast("informer.Informer[Named]", watch), gone=lambda *_: None)
    watch.reports(ChangeKind.APPEARED, "labelled")
    for name in ("labelled", "old", "again"):
        known.found("team", name, spec=SPEC)
    now = 1.0
    known.found("team", "again", spec=SPEC)
    now = names._FOUND_SECONDS
    known.found("team", "new")
    assert [name for name in ("labelled", "old", "again", "new") if known.has("team", name)] == [
        "labelled",
        "again",
        "new",
    ]
    assert known.spec("team", "labelled") == known.spec("team", "again") == SPEC
    assert set(known._found) == {("team", "again"), ("team", "new")}
    assert set(known._specs) == {("team", "labelled"), ("team", "again")}
