"""The launcher is one file for any image."""

import ast
import io
import sys
import zipfile
from pathlib import Path

import pytest
import vermin

from launcher import kubemend_run

SOURCE = Path(kubemend_run.__file__).read_text()


def modules_of(source: str) -> set[str]:
    """Return the modules that it imports."""
    nodes = list(ast.walk(ast.parse(source, feature_version=(3, 8))))
    direct = {name.name for each in nodes if isinstance(each, ast.Import) for name in each.names}
    return direct | {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)}


def test_the_launcher_is_of_the_oldest_grammar_and_needs_only_the_standard_library() -> None:
    assert modules_of(SOURCE) <= sys.stdlib_module_names


def test_the_launcher_runs_on_the_oldest_python_of_its_documentation() -> None:
    """Debian has none that is as old. Without these functions ``kill`` compares the process and then kills its PID."""
    config = vermin.Config()
    for name in ("os.pidfd_open", "signal.pidfd_send_signal"):
        config.add_exclusion(name)
    assert vermin.visit(SOURCE, config).minimum_versions() == [None, (3, 8)]


def test_the_bootstrap_imports_only_what_each_interpreter_has_loaded() -> None:
    with zipfile.ZipFile(io.BytesIO(kubemend_run.bootstrap())) as archive:
        assert archive.namelist() == ["sitecustomize.py"]
        source = archive.read("sitecustomize.py").decode()
    assert modules_of(source) == {"__future__", "_weakref", "os", "sys"}
    compile(source, "sitecustomize.py", "exec")


def test_the_bootstrap_is_found_in_a_file_with_the_line_ends_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one would leave the launcher's variables to the program, and hide the image's sitecustomize."""
    expected = kubemend_run.bootstrap()
    (copy := tmp_path / "kubemend_run.py").write_text(SOURCE, newline="\r\n")
    monkeypatch.setattr(kubemend_run, "__file__", str(copy))
    assert kubemend_run.bootstrap() == expected
