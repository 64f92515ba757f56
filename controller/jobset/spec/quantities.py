"""Parse resource quantities of Kubernetes. Pure."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32}))(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[A-Za-z]{0,2}))",
    re.ASCII,
)
_SUFFIXES: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate("num", start=-3)},
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(2) ** (10 * power) for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse(value: object) -> Fraction | None:
    """Return the amount of a ``resource.Quantity`` such as ``500m``, ``1Gi``, ``1e3`` or 8; None if it is invalid."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    factor = _SUFFIXES.get(match["suffix"])
    return None if factor is None else number * factor
