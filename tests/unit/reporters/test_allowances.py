from hypothesis import given
from hypothesis import strategies as st

from agent.reporters.allowances import Allowances

BURST, REFILL = 3, 10.0


def spend_all(allowances: Allowances, key: str, *, now: float) -> int:
    """Spend what there is, and return how much that was."""
    spent = 0
    while allowances.next_at(key) <= now:
        allowances.spend(key, now=now)
        spent += 1
    return spent


def test_a_burst_and_then_one_for_each_refill() -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    assert spend_all(allowances, "a", now=100.0) == 3
    assert allowances.next_at("a") == 110.0
    assert spend_all(allowances, "a", now=110.0) == 1
    assert spend_all(allowances, "a", now=1000.0) == 3


def test_keys_do_not_pay_for_each_other() -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    spend_all(allowances, "a", now=100.0)
    assert spend_all(allowances, "b", now=100.0) == 3


@given(gaps=st.lists(st.floats(0.0, 100.0), max_size=40))
def test_never_more_than_the_burst_and_the_refills_of_the_time_that_passed(gaps: list[float]) -> None:
    allowances = Allowances(burst=BURST, refill=REFILL)
    now, spent = 50.0, 0
    for gap in gaps:
        now += gap
        spent += spend_all(allowances, "a", now=now)
        assert spent <= BURST + (now - 50.0) / REFILL + 1e-6
