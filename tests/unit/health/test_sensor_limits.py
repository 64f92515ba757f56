"""Limits are data: shipped in the catalog, changed by an operator, refused where invalid."""

import dataclasses
import importlib.resources

import pytest

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog_file import CatalogError
from kubemend.agent.health.catalog.sensor_limits import SensorLimits

BASE = catalog_file.builtin()


def test_catalog_has_the_limits_of_the_rules() -> None:
    assert BASE.limits == SensorLimits()
    text = (importlib.resources.files("kubemend.agent.health.catalog") / "catalog.yaml").read_text()
    for group in (BASE.limits.gpu, BASE.limits.nic):
        assert all(f"\n    {each.name}: " in text for each in dataclasses.fields(group))


def test_operator_changes_only_named_limits() -> None:
    changed = catalog_file.merged(BASE, "schema: 1\nlimits: {gpu: {pcie_replays: 80}, nic: {up_for: 2.5}}\n").limits
    assert (changed.gpu.pcie_replays, changed.nic.up_for) == (80, 2.5)
    assert dataclasses.replace(changed.gpu, pcie_replays=BASE.limits.gpu.pcie_replays) == BASE.limits.gpu
    assert dataclasses.replace(changed.nic, up_for=BASE.limits.nic.up_for) == BASE.limits.nic


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("[]", "limits is not a mapping"),
        ("{cpu: {}}", "limits has no group 'cpu': use gpu or nic"),
        ("{gpu: 3}", "limits.gpu is not a mapping"),
        ("{gpu: {settel: 3}}", "limits.gpu has no limit 'settel': use "),
        ("{gpu: {settle: soon}}", "limits.gpu.settle is 'soon': write a number of more than 0"),
        ("{gpu: {settle: 0}}", "limits.gpu.settle is 0: write a number of more than 0"),
        ("{gpu: {settle: .inf}}", "limits.gpu.settle is inf: write a number of more than 0"),
        ("{gpu: {settle: true}}", "limits.gpu.settle is True: write a number of more than 0"),
        ("{nic: {flap_drops: 2.5}}", "limits.nic.flap_drops is 2.5: write a whole number of more than 0"),
    ],
)
def test_invalid_limit_is_refused_with_hint(given: str, expected: str) -> None:
    with pytest.raises(CatalogError) as refused:
        catalog_file.merged(BASE, f"schema: 1\nlimits: {given}\n")
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
