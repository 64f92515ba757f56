"""Which interpreters can be warmed, and what a spare imports."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.kubemend_run import (
    READ_ONCE,
    Known,
    Program,
    Scheduled,
    names_of,
    plan,
    program_of,
    read_stored,
    scheduled,
    stored,
    takes_from_others,
)

MODULES = st.sampled_from(
    ["a", "a.b", "a.b.c", "ab", "b", "b.a", "json", "train", "pkg", "pkg.__main__", "sitecustomize"]
)
PARTS = st.sampled_from(["a", "_b1", "größe", "__init__"])
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("md"), MODULES).map(" ".join),
        st.sampled_from(["e 41 =42", "e 41 -", "p 2f", "h 12", "", "m a\0b", "e zz =", "x y"]),
    )
)
NAMES = st.lists(MODULES, unique=True).map(tuple)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", Program(("python", "train.py"))),
        ("python3.11 -u -X dev -Werror train.py x", Program(("python3.11", "-u", "-X", "dev", "-Werror", "train.py"))),
        ("python3.14t -um pkg.train x", Program(("python3.14t", "-um", "pkg.train"), "pkg.train")),
        ("python -mpkg x", Program(("python", "-mpkg"), "pkg")),
        ("python -c code x", Program(("python", "-c", "code"))),
        ("/b/python --check-hash-based-pycs never a", Program(("/b/python", "--check-hash-based-pycs", "never", "a"))),
        ("python -I train.py", Program(("python", "-I", "train.py"), cold="python -I reads no sitecustomize")),
        ("python -uE train.py", Program(("python", "-uE", "train.py"), cold="python -E reads no sitecustomize")),
        ("python -Im pkg", Program(("python", "-Im", "pkg"), "pkg", cold="python -I reads no sitecustomize")),
        ("python -", Program(("python",), cold=READ_ONCE)),
        ("python", Program(("python",), cold=READ_ONCE)),
        ("python -I -", Program(("python", "-I"), cold=READ_ONCE)),
        ("python /dev/fd/1000000 x", Program(("python",), cold=READ_ONCE)),
        ("torchrun train.py", None),
        ("python-config train.py", None),
        ("sh -c python", None),
    ],
)  # fmt: skip
def test_the_program_of_a_command(command: str, expected: Program | None) -> None:
    assert program_of(command.split()) == expected


@given(st.lists(st.text(max_size=5), max_size=6))
def test_any_command_line_of_python_has_a_program(words: list[str]) -> None:
    program = program_of(["python", *words])
    assert program is not None
    assert program.key == ("python", *words)[: len(program.key)]


def test_a_spare_does_what_the_trainer_did_and_then_what_an_earlier_one_imported() -> None:
    records = [
        "h 12",
        "e 41 =42",
        "m numpy",
        "m numpy.core",
        "d numpy.core",
        "d numpy",
        "p 2f",
        "m torch",
        "d torch",
        "",
    ]
    known = Known(names=("torch", "rare"))
    assert plan(records, known, "") == ["e 41 =42", "m numpy", "m numpy.core", "p 2f", "m torch", "m rare"]


def test_a_module_that_is_being_imported_is_left_out_with_all_below_it() -> None:
    """It may be the program itself: ``python -c 'import train'``."""
    records = ["m json", "d json", "m train", "m train.data", "d train.data", "m numpy", "d numpy"]
    assert plan(records, Known(("train", "train.old", "late")), "") == ["m json", "m numpy", "m late"]
    assert names_of(records) == ("json", "numpy")


@pytest.mark.parametrize(
    ("main", "names", "expected"),
    [
        ("pkg.train", ["pkg", "pkg.train", "pkg.data"], ["pkg", "pkg.data"]),
        ("pkg", ["pkg", "pkg.__main__", "pkg.data"], ["pkg", "pkg.data"]),
        ("train", ["train", "json", "__main__", "sitecustomize"], ["json"]),
    ],
)
def test_the_program_itself_is_not_imported(main: str, names: list[str], expected: list[str]) -> None:
    records = [f"{kind} {name}" for name in names for kind in "md"]
    assert plan(records, Known(), main) == ["m " + each for each in expected]


@given(RECORDS, NAMES, NAMES, NAMES, st.sampled_from(["", "train", "pkg", "a.b"]))
def test_a_plan_has_only_modules_that_are_permitted(
    records: list[str], names: tuple[str, ...], left_out: tuple[str, ...], skipped: tuple[str, ...], main: str
) -> None:
    todo = plan(records, Known(names, left_out), main, skipped)
    modules = [each[2:] for each in todo if each.startswith("m ")]
    running = {each[2:] for each in records if each[:2] == "m "} - {each[2:] for each in records if each[:2] == "d "}
    for module in modules:
        parts = module.split(".")
        assert {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}.isdisjoint(
            {*left_out, *skipped, *running}
        )
    assert "sitecustomize" not in modules
    assert set(modules) <= {*names, *(each[2:] for each in records)}
    assert all(each in records for each in todo if not each.startswith("m "))


@given(st.lists(st.lists(PARTS, min_size=1, max_size=3).map(".".join), unique=True).map(tuple), NAMES)
def test_stored_plan_is_read_again(names: tuple[str, ...], left_out: tuple[str, ...]) -> None:
    known = Known(names, left_out)
    assert read_stored(stored(known)) == known


@given(st.text())
def test_any_file_is_read_as_names_of_modules(text: str) -> None:
    known = read_stored(text)
    assert all(part.isidentifier() for each in (*known.names, *known.left_out) for part in each.split("."))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Scheduled(1.0, 1.0), Scheduled(1.02, 1.0), False),
        (Scheduled(1.0, 1.0), Scheduled(1.02, 1.001), False),
        (Scheduled(1.0, 1.0), Scheduled(1.02, 1.005), True),
        (Scheduled(1.0, 1.0), Scheduled(1.0, 1.02), True),
        (Scheduled(1.0, 1.0), Scheduled(1.0, 1.0), False),  # it waits for a disk
        (None, Scheduled(1.0, 1.0), True),
        (Scheduled(1.0, 1.0), None, True),
    ],
)
def test_a_spare_that_waits_for_a_processor_competes_for_it(
    before: Scheduled | None, now: Scheduled | None, expected: bool
) -> None:
    assert takes_from_others(before, now) is expected


def test_a_process_that_has_ended_has_no_times() -> None:
    assert scheduled(os.getpid()) is not None
    assert scheduled(2**22) is None
