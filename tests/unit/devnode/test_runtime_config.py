"""The OCI runtime of a dev node, and how it is selected."""

import pytest

from hack.devnode.packages import PackagesError
from hack.devnode.runtime_config import RUNC, RuntimeOptions

VARIABLE = "KUBEMEND_DEV_OCI_RUNTIME"


def test_containers_are_run_by_runc_unless_a_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert RuntimeOptions().oci_runtime == RUNC
    assert RuntimeOptions().crun is None


def test_an_unknown_oci_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "youki")
    with pytest.raises(PackagesError, match=r"no OCI runtime 'youki'; use runc or crun"):
        _ = RuntimeOptions().crun
