"""Combine the outcomes of concurrent restarts."""

import pytest

from kubemend.agent.model import outcomes
from kubemend.agent.model.outcomes import Outcome, Result


@pytest.mark.parametrize(
    ("results", "together"),
    [
        ((Result.SWAPPED, Result.ADOPTED), Result.ADOPTED),
        ((Result.SWAPPED, Result.UNFINISHED), Result.UNFINISHED),
        ((Result.NOT_ALIKE, Result.UNDONE), Result.NOT_ALIKE),
        ((Result.NOT_ALIKE, Result.SWAPPED), Result.FAILED),
        ((Result.NOT_ALIKE, Result.STUCK), Result.STUCK),
        ((Result.COMPLETED, Result.SWAPPED), Result.SWAPPED),
        ((Result.COMPLETED, Result.FAILED), Result.FAILED),
        ((Result.COMPLETED, Result.COMPLETED), Result.COMPLETED),
    ],
)
def test_together_has_the_worst_result_and_never_denies_a_restart(
    results: tuple[Result, ...], together: Result
) -> None:
    assert outcomes.together(Outcome(result) for result in results).result is together
    assert outcomes.together(Outcome(result) for result in reversed(results)).result is together
