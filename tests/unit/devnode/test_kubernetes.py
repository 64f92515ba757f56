"""The location of the dev cluster's real programs, and the message when there are none."""

from pathlib import Path

import pytest

from hack.devnode import kubernetes
from hack.devnode.packages import PackagesError


def test_version_is_the_one_that_go_mod_requires() -> None:
    module = (Path(kubernetes.__file__).parents[1] / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes {kubernetes.version()}\n" in module


def test_every_program_has_a_main_package() -> None:
    commands = Path(kubernetes.__file__).parents[1] / "kubernetes" / "cmd"
    assert sorted(path.parent.name for path in commands.glob("*/main.go")) == sorted(kubernetes.PROGRAMS)


def test_a_set_variable_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "kubelet").touch()
    environ = {"KUBEBUILDER_ASSETS": str(tmp_path)}
    assert kubernetes.assets(environ) == tmp_path
    assert kubernetes.missing("kubelet", environ=environ) == ""
    assert kubernetes.missing("kubelet", "etcd", environ=environ) == f"{tmp_path} lacks etcd"


def test_an_empty_variable_means_no_real_programs() -> None:
    environ = {"KUBEBUILDER_ASSETS": ""}
    assert kubernetes.assets(environ) is None
    assert "make kubernetes" in kubernetes.missing("kubelet", environ=environ)


def test_a_set_variable_without_the_programs_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(PackagesError, match="lacks etcd and kube-apiserver"):
        kubernetes.ensure()


def test_failed_build_reports_the_reason_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho noise\necho 'k8s.io/api@v0.0.0: no such module' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", f"{go.parent}:/bin:/usr/bin")
    with pytest.raises(PackagesError, match=r"cannot be built: k8s\.io/api@v0\.0\.0: no such module; make the Go"):
        kubernetes.ensure(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_build_makes_the_directory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\nfor each; do case $each in -o=*) touch "${each#-o=}kubelet";; esac; done\n')
    go.chmod(0o755)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", f"{go.parent}:/bin:/usr/bin")
    built = kubernetes.ensure(tmp_path / "cache")
    assert (built / "kubelet").is_file()
    go.unlink()
    assert kubernetes.ensure(tmp_path / "cache") == built
