"""Which programs a container runtime names as its OCI runtimes, from real answers and odd ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.restart import oci_programs
from kubemend.agent.restart.oci_programs import Named, Problem, Reason

RUNC = "io.containerd.runc.v2"


def containerd(**binary_names: Any) -> str:
    """Return containerd's configuration with these runtimes."""
    found = {name: {"runtimeType": RUNC, "options": {"BinaryName": each}} for name, each in binary_names.items()}
    return json.dumps({"containerd": {"defaultRuntimeName": "runc", "runtimes": found}})


def crio(**entries: dict[str, Any]) -> str:
    return json.dumps({"crio": {"DefaultRuntime": "crun", "Runtimes": entries}})


def problem(config: str) -> Problem:
    found = oci_programs.named(config).problem
    assert found is not None
    return found


def test_containerds_binary_names_are_the_programs_each_once() -> None:
    config = containerd(
        runc="/opt/crun/bin/crun", nvidia="/usr/bin/nvidia-container-runtime", same="/opt/crun/bin/crun"
    )
    assert oci_programs.named(config) == Named(("/opt/crun/bin/crun", "/usr/bin/nvidia-container-runtime"))


def test_crios_runtime_paths_are_the_programs() -> None:
    crun = {"RuntimePath": "/usr/libexec/crio/crun", "RuntimeType": "oci", "RuntimeRoot": "/run/crun"}
    assert oci_programs.named(crio(crun=crun, runc={"RuntimePath": "/opt/runc", "RuntimeType": ""})) == Named(
        ("/usr/libexec/crio/crun", "/opt/runc")
    )


@pytest.mark.parametrize("options", [{}, {"BinaryName": ""}, None, {"BinaryName": None}])
def test_runtime_that_leaves_it_to_its_search_path_names_none(options: object) -> None:
    runtimes = {"runc": {"runtimeType": RUNC, "options": options}}
    assert oci_programs.named(json.dumps({"containerd": {"runtimes": runtimes}})) == Named()


def test_program_may_be_a_name_in_the_search_path() -> None:
    assert oci_programs.named(containerd(runc="shimpei")) == Named(("shimpei",))


def test_sandboxed_runtimes_execute_no_oci_runtime_of_the_node() -> None:
    runtimes = {
        "kata": {"runtimeType": "io.containerd.kata.v2", "options": {"BinaryName": "/opt/kata"}},
        "gvisor": {"runtimeType": "io.containerd.runsc.v1", "options": {"BinaryName": "/opt/runsc"}},
    }
    assert oci_programs.named(json.dumps({"containerd": {"runtimes": runtimes}})) == Named()
    assert oci_programs.named(crio(kata={"RuntimePath": "/opt/kata", "RuntimeType": "vm"})) == Named()


@pytest.mark.parametrize(
    "value",
    [
        "../crun",
        "opt/crun",
        "/opt/../crun",
        "/opt/crun/",
        "/opt/crun/..",
        "/opt/\0crun",
        "/opt/crun\n/etc/x",
        "/opt/\ud800",
        "..",
        7,
        ["/opt/crun"],
        True,
        f"/{'x' * oci_programs.MOST_PATH}",
    ],
)
def test_program_that_is_no_path_is_left_out_with_one_reason(value: object) -> None:
    found = oci_programs.named(containerd(a=value, b="/opt/crun"))
    assert found.programs == ("/opt/crun",)
    assert found.problem is not None
    assert found.problem.reason is Reason.NO_PROGRAM
    assert found.problem.what.isprintable()
    assert len(found.problem.what) < 300


def test_path_of_the_most_bytes_is_used() -> None:
    longest = f"/{'x' * (oci_programs.MOST_PATH - 1)}"
    assert oci_programs.named(containerd(runc=longest)) == Named((longest,))


def test_the_most_runtimes_are_used_and_more_are_not() -> None:
    most = {f"r{number}": f"/opt/{number}" for number in range(oci_programs.MOST_RUNTIMES)}
    assert len(oci_programs.named(containerd(**most)).programs) == oci_programs.MOST_RUNTIMES
    assert oci_programs.named(containerd(**most, more="/opt/more")).programs == ()
    assert problem(containerd(**most, more="/opt/more")).reason is Reason.TOO_MANY


def test_configuration_of_the_most_characters_is_read_and_a_longer_one_is_not() -> None:
    config = containerd(runc="/opt/crun")
    longest = config.ljust(oci_programs.MOST_TEXT)
    assert oci_programs.named(longest) == Named(("/opt/crun",))
    assert problem(f"{longest} ").reason is Reason.TOO_LONG


@pytest.mark.parametrize("config", ["", "{}", "[]", "null", '{"sandboxImage": "pause"}', '{"crio": {"Runtimes": []}}'])
def test_answer_without_runtimes_is_missing(config: str) -> None:
    assert problem(config).reason is Reason.MISSING


@pytest.mark.parametrize("config", ["{", "runc", "[" * 100_000])
def test_answer_that_is_not_json_is_refused(config: str) -> None:
    assert problem(config).reason is Reason.NOT_JSON


WORDS = st.text(max_size=8) | st.sampled_from(["runtimeType", "options", "BinaryName", "RuntimePath", "RuntimeType"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(outer=st.sampled_from([("containerd", "runtimes"), ("crio", "Runtimes")]), runtimes=ANY)
def test_any_runtimes_give_paths_and_names_only(outer: tuple[str, str], runtimes: object) -> None:
    found = oci_programs.named(json.dumps({outer[0]: {outer[1]: runtimes}}))
    assert all(each.startswith("/") or "/" not in each for each in found.programs)
