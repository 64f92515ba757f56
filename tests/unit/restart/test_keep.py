"""Which paths of the writable layer a successor keeps, and between which directories they are moved."""

import pytest

from kubemend.agent.restart import keep, options, strategies
from kubemend.agent.restart.intents import SwapOrder
from kubemend.agent.restart.keep import Layer, Mount, NotKept
from tests.unit.restart import builders

OVERLAY = Mount("overlay", ("index=off", "workdir=/s/2/work", "upperdir=/s/2/fs", "lowerdir=/s/1/fs:/s/0/fs"))
NAME = "x" * keep.LONGEST_NAME


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ()),
        ("/root/.cache", ("/root/.cache",)),
        (" /b , /a,, /b ", ("/b", "/a")),
        ("/a,/ab", ("/a", "/ab")),
        (f"/{NAME}", (f"/{NAME}",)),
        ("/d" * keep.DEEPEST, ("/d" * keep.DEEPEST,)),
        (",".join(f"/{n}" for n in range(keep.MOST_PATHS)), tuple(f"/{n}" for n in range(keep.MOST_PATHS))),
    ],
)
def test_paths_are_read_in_order(text: str, paths: tuple[str, ...]) -> None:
    assert options.parse({options.KEEP: text}).keep == paths


@pytest.mark.parametrize(
    "text",
    [
        "relative",
        "/",
        "//a",
        "/a/",
        "/a/../b",
        "/a/./b",
        "/a\0b",
        "/a,/a/b",
        "/a/b,/a",
        f"/{NAME}x",
        "/d" * (keep.DEEPEST + 1),
        ",".join(f"/{n}" for n in range(keep.MOST_PATHS + 1)),
        "/" + "é" * 128,
        "/a" * 501,
    ],
)
def test_bad_annotation_is_refused(text: str) -> None:
    with pytest.raises(options.BadAnnotationError, match=options.KEEP):
        options.parse({options.KEEP: text})


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/data", True),
        ("/data/volume", True),
        ("/data/volume/x", True),
        ("/proc/1", True),
        ("/data/volumes", False),
        ("/dat", False),
        ("/root", False),
    ],
)
def test_mounts_are_no_part_of_the_layer(path: str, refused: bool) -> None:
    assert bool(keep.obstacle(path, mount_points=["/", "/proc", "/data/volume"])) is refused


def test_overlay_has_one_upper_directory() -> None:
    assert keep.layer([OVERLAY]) == Layer("/s/2/fs", "/s/1/fs:/s/0/fs")


@pytest.mark.parametrize(
    "mounts",
    [
        [],
        [OVERLAY, OVERLAY],
        [Mount("bind", ("rw", "rbind"))],
        [Mount("overlay", ("lowerdir=/s/1/fs:/s/0/fs",))],
        [Mount("overlay", ("upperdir=/s/2/fs",))],
        [Mount("overlay", ("upperdir=/s/../fs", "lowerdir=/s/1/fs"))],
        [Mount("overlay", ("upperdir=/s/a b", "lowerdir=/s/1/fs"))],
        [Mount("overlay", ("upperdir=s", "lowerdir=/s/1/fs"))],
        [Mount("overlay", (*OVERLAY.options, "userxattr"))],
    ],
)
def test_other_roots_are_refused(mounts: list[Mount]) -> None:
    assert isinstance(keep.layer(mounts), NotKept)


def test_layer_of_crio_is_mounted_at_the_root_of_its_container() -> None:
    assert keep.stored_layer("/s/2/merged", lower="l/B:l/A") == Layer("/s/2/diff", "l/B:l/A", mounted_at="/s/2/merged")


@pytest.mark.parametrize(
    ("root", "lower"),
    [
        ("/s/2/rootfs", "l/A"),
        ("/s/2/merged", ""),
        ("/s/../merged", "l/A"),
        ("/s,x/merged", "l/A"),
        ("merged", "l/A"),
    ],
)
def test_root_that_is_not_of_crios_overlays_is_refused(root: str, lower: str) -> None:
    assert keep.stored_layer(root, lower=lower) == NotKept(keep.NO_OVERLAY)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Layer("/s/2/fs", "/s/1"), Layer("/s/3/fs", "/s/1"), (Layer("/s/2/fs", "/s/1"), Layer("/s/3/fs", "/s/1"))),
        (Layer("/s/2/fs", "/s/1"), Layer("/s/3/fs", "/s/0"), NotKept("the new container has another image")),
        (Layer("/s/2/fs", "/s/1"), Layer("/s/2/fs", "/s/1"), NotKept("both containers have one writable layer")),
        (NotKept("why"), Layer("/s/3/fs", "/s/0"), NotKept("why")),
        (Layer("/s/3/fs", "/s/0"), NotKept("why"), NotKept("why")),
    ],
)
def test_only_layers_of_one_image_fit(old: Layer | NotKept, new: Layer | NotKept, expected: object) -> None:
    assert keep.pair(old, new) == expected


def test_swap_that_keeps_paths_stops_the_old_container_before_it_starts_the_successor() -> None:
    pod = builders.pod()
    for keeps, order in ((False, SwapOrder.START_ELSE_STOP_FIRST), (True, SwapOrder.STOP_FIRST)):
        situation = strategies.Situation(pod=pod, targets=pod.containers[:1], can_hold=True, keeps=keeps)
        chosen = strategies.order_of(pod.containers[0], situation)
        assert chosen is order
