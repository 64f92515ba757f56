from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.reporters.allowances import Allowances

BURST, REFILL = 3, 10.0


def spend_all(allowances: Allowances, key: str, *, now: float) -> int:
    """Spend all available tokens, and return how many that was."""
    spent = 0
    while allowances.next_at(key) <= now:
        allowances.spend(key, now=now)
        spent += 1
    return spent


def test_burst_then_one_per_refill() -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    assert spend_all(allowances, "a", now=100.0) == 3
    assert allowances.next_at("a") == 110.0
    assert spend_all(allowances, "a", now=110.0) == 1
    assert spend_all(allowances, "a", now=1000.0) == 3


def test_keys_are_independent() -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    spend_all(allowances, "a", now=100.0)
    assert spend_all(allowances, "b", now=100.0) == 3


@given(gaps=st.lists(st.floats(0.0, 100.0), max_size=40))
def test_spending_never_exceeds_burst_and_refills(gaps: list[float]) -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    now, spent = 50.0, 0
    for gap in gaps:
        now += gap
        spent += spend_all(allowances, "a", now=now)
        assert spent <= BURST + (now - 50.0) / REFILL + 1e-6
