"""Limits are data: shipped in the catalog, changed by an operator, refused where they mean nothing."""

import dataclasses
import importlib.resources

import pytest

from agent.health import catalog_file
from agent.health.catalog_file import CatalogError
from agent.health.sensor_limits import SensorLimits

BASE = catalog_file.builtin()


def test_the_catalog_has_every_limit_as_the_rules_have_it() -> None:
    assert BASE.limits == SensorLimits()
    text = (importlib.resources.files("agent.health") / "catalog.yaml").read_text()
    for group in (BASE.limits.gpu, BASE.limits.nic):
        assert all(f"\n    {each.name}: " in text for each in dataclasses.fields(group))


def test_an_operator_changes_what_he_names_and_nothing_else() -> None:
    changed = catalog_file.merged(BASE, "schema: 1\nlimits: {gpu: {pcie_replays: 80}, nic: {up_for: 2.5}}\n").limits
    assert (changed.gpu.pcie_replays, changed.nic.up_for) == (80, 2.5)
    assert dataclasses.replace(changed.gpu, pcie_replays=BASE.limits.gpu.pcie_replays) == BASE.limits.gpu
    assert dataclasses.replace(changed.nic, up_for=BASE.limits.nic.up_for) == BASE.limits.nic


@pytest.mark.parametrize(
    ("given", "says"),
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
def test_what_means_nothing_is_refused_with_the_mend(given: str, says: str) -> None:
    with pytest.raises(CatalogError) as refused:
        catalog_file.merged(BASE, f"schema: 1\nlimits: {given}\n")
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
