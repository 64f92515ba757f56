"""Renewals, followed through years of reconciling, with everything that agents and hubs may still hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.controller.certificates import plan
from kubemend.controller.certificates.plan import DAY, Act, CaView, Periods, ServerView, Step, View

_NAMES = frozenset({"kubemend-hub.kubemend.svc"})
_PERIODS = Periods()
_CA = CaView(made_at=0.0, not_after=_PERIODS.ca)
_SERVER = ServerView(not_after=_PERIODS.server, names=_NAMES, by_ca=True)


def _due(view: View, *, now: float) -> Step | None:
    return plan.due(view, names=_NAMES, now=now, periods=_PERIODS)


_NEW_CA = CaView(made_at=10 * DAY, not_after=_PERIODS.ca)
_OLD_CA = CaView(made_at=0.0, not_after=5 * DAY)


@pytest.mark.parametrize(
    ("view", "now", "step"),
    [
        (View(), 0.0, Step(Act.MAKE_CA, "Missing")),
        (View(server=_SERVER), 0.0, Step(Act.MAKE_CA, "Missing")),
        (View(ca=_CA), 0.0, Step(Act.ISSUE_SERVER, "Missing")),
        (View(ca=_CA, server=_SERVER), 59 * DAY, None),
        (View(ca=_CA, server=_SERVER), 60 * DAY, Step(Act.ISSUE_SERVER, "Expiring")),
        (View(ca=_CA, server=ServerView(90 * DAY, _NAMES, by_ca=False)), 0.0, Step(Act.ISSUE_SERVER, "OtherCa")),
        (View(ca=_CA, server=ServerView(90 * DAY, frozenset({"x"}), by_ca=True)), 0.0,
         Step(Act.ISSUE_SERVER, "OtherNames")),
        (View(ca=_CA, server=ServerView(90 * DAY, _NAMES | {"x"}, by_ca=True)), 0.0, None),
        (View(ca=_CA, server=_SERVER), 730 * DAY, Step(Act.MAKE_NEXT_CA, "Expiring")),
        (View(ca=_CA, server=_SERVER), _PERIODS.ca, Step(Act.MAKE_CA, "Expired")),
        (View(ca=_CA, next_ca=_NEW_CA, server=_SERVER), 10.9 * DAY, None),
        (View(ca=_CA, next_ca=_NEW_CA, server=_SERVER), 11 * DAY, Step(Act.PROMOTE_NEXT_CA, "Published")),
        (View(ca=_CA, next_ca=CaView(_PERIODS.ca, 2 * _PERIODS.ca), server=_SERVER), _PERIODS.ca,
         Step(Act.PROMOTE_NEXT_CA, "Expired")),
        (View(ca=_CA, old_ca=_OLD_CA, server=_SERVER), 4 * DAY, None),
        (View(ca=_CA, old_ca=_OLD_CA, server=_SERVER), 5 * DAY, Step(Act.DROP_OLD_CA, "Expired")),
    ],
)  # fmt: skip
def test_plan_returns_due_step(view: View, now: float, step: Step | None) -> None:
    assert _due(view, now=now) == step


@settings(max_examples=50)
@given(st.lists(st.floats(min_value=0.01, max_value=20), min_size=1, max_size=400))
def test_served_certificate_always_has_a_ca_published_for_overlap(pauses: list[float]) -> None:
    """Renew at any times, at least every 20 days: the served certificate is valid, its CA published long enough."""
    now, view, signer = 0.0, View(), -1.0
    published: dict[float, float] = {}
    for pause in [0.0, *pauses]:
        now += pause * DAY
        while (step := _due(view, now=now)) is not None:
            view = _after(view, step.act, now=now)
            if step.act is Act.ISSUE_SERVER:
                assert view.ca is not None
                signer = view.ca.made_at
        for ca in (view.ca, view.next_ca):
            if ca is not None:
                published.setdefault(ca.made_at, now)
        assert view.ca is not None
        assert view.server is not None
        assert view.ca.made_at == signer
        assert view.server.not_after > now
        assert view.ca.not_after >= view.server.not_after
        assert signer == 0.0 or now - published[signer] >= _PERIODS.overlap
        assert view.old_ca is None or view.old_ca.not_after > now


def _after(view: View, act: Act, *, now: float) -> View:
    new = CaView(made_at=now, not_after=now + _PERIODS.ca)
    server = view.server
    match act:
        case Act.MAKE_CA:
            return View(ca=new)
        case Act.MAKE_NEXT_CA:
            return View(ca=view.ca, next_ca=new, old_ca=view.old_ca, server=server)
        case Act.PROMOTE_NEXT_CA:
            other = ServerView(server.not_after, server.names, by_ca=False) if server else None
            return View(ca=view.next_ca, old_ca=view.ca, server=other)
        case Act.DROP_OLD_CA:
            return View(ca=view.ca, next_ca=view.next_ca, server=server)
        case Act.ISSUE_SERVER:
            issued = ServerView(now + _PERIODS.server, _NAMES, by_ca=True)
            return View(ca=view.ca, next_ca=view.next_ca, old_ca=view.old_ca, server=issued)
