"""Resource quantities in all forms of Kubernetes."""

from fractions import Fraction

import pytest

from kubemend.controller.jobset.spec import quantities


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        (8, Fraction(8)),
        ("8", Fraction(8)),
        ("0.5", Fraction(1, 2)),
        (0.5, Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("-1", Fraction(-1)),
        ("+1", Fraction(1)),
        ("1500m", Fraction(3, 2)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("2k", Fraction(2000)),
        ("2Ki", Fraction(2048)),
        ("1Gi", Fraction(2**30)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(2**60)),
        ("1e3", Fraction(1000)),
        ("12E-1", Fraction(12, 10)),
    ],
)
def test_valid_quantity_is_parsed(text: object, amount: Fraction) -> None:
    assert quantities.parse(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1KI", "1ki", "one", None, "1e1000", "1.2.3", "9" * 99, "٣"])
def test_invalid_quantity_is_none(text: object) -> None:
    assert quantities.parse(text) is None
