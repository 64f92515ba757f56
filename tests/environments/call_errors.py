"""Combine the calls of a swap, the codes of their errors, and the swap's orders."""

from collections.abc import Iterable
from typing import Final

import grpc
import pytest

from kubemend.agent.restart.intents import SwapOrder

_METHODS: Final = ("StopContainer", "CreateContainer", "StartContainer", "ListContainers")
_DISTINGUISHED: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Codes that ``clients.cri.errors`` distinguishes, and one for all others."""


def of_swaps(codes: Iterable[grpc.StatusCode]) -> pytest.MarkDecorator:
    """Return the parameters ``method``, ``code`` and ``order``.

    A code that is distinguished meets each call of each order; another one meets each call in one of the orders.
    """
    orders = tuple(SwapOrder)
    chosen = [
        pytest.param(method, code, order, id=f"{code.name}-{method}-{order}")
        for number, code in enumerate(codes)
        for place, method in enumerate(_METHODS)
        for order in (orders if code in _DISTINGUISHED else (orders[(number + place) % len(orders)],))
    ]
    return pytest.mark.parametrize(("method", "code", "order"), chosen)
