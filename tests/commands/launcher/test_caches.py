"""A compile cache that breaks the program is emptied by the launcher, by the agent's rule."""

import time
from pathlib import Path

import pytest
import yaml

from kubemend.agent.actuator import cache_removal
from kubemend.agent.restart import cache
from kubemend.common import cache_volume
from launcher import kubemend_run
from launcher.kubemend_run import CACHE_FOLDER, CACHES, Past, cache_of, empties_cache, empty_directory
from tests.commands.launcher.running import Running

COMPONENT = Path(kubemend_run.__file__).parents[1] / "daemonset/components/caches/policy.yaml"
MOUNTED = "/var/lib/kubelet/pods/0f1c/volumes/kubernetes.io~empty-dir/kubemend-cache"
ROOT = "512 498 0:52 / / rw,relatime - overlay overlay rw\n"
ENVIRON = {name: f"{CACHE_FOLDER}/trainer/{end}" for name, end in CACHES.items()}

NODE = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /var/cache && mkdir /var/cache/kubemend && mount --bind "$0" /var/cache/kubemend && exec "$@"',
)
"""It has the folder of its first argument at the place of the cache volume, and executes the others."""


def mount(source: str, folder: str = CACHE_FOLDER) -> str:
    """Return the line of a mount in /proc/self/mountinfo."""
    return f"530 512 8:1 {source} {folder} rw,relatime - ext4 /dev/sda1 rw\n"


def test_place_names_and_rule_are_those_of_agent_component_and_controller() -> None:
    policy = next(yaml.safe_load_all(COMPONENT.read_text()))
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert yaml.safe_load(variables["directories"]) == CACHES == cache_volume.DIRECTORIES
    assert variables["path"] == repr(CACHE_FOLDER)
    assert (cache_volume.PATH, cache_removal.ASIDE) == (CACHE_FOLDER, kubemend_run._ASIDE)
    assert kubemend_run._CACHE_VOLUME.endswith(f"/{cache_volume.NAME}")
    assert kubemend_run._EARLY_FAILURES == cache.EARLY_FAILURES


@pytest.mark.parametrize(
    ("early", "restarts", "empties"),
    [(1, 0, False), (2, 1, False), (3, 2, True), (2, 2, True), (1, 5, False), (0, 9, False), (9, 9, True)],
)
def test_two_restarts_in_a_row_that_did_not_last_empty_the_cache(early: int, restarts: int, empties: bool) -> None:
    assert empties_cache(Past((), early), restarts) is empties


def test_cache_is_the_containers_directory_in_the_pods_own_volume() -> None:
    assert cache_of(ENVIRON, ROOT + mount(MOUNTED)) == "trainer"
    assert cache_of({"TRITON_CACHE_DIR": "/data/triton", **dict([*ENVIRON.items()][:1])}, mount(MOUNTED)) == "trainer"


@pytest.mark.parametrize(
    "mounts",
    [
        "",
        ROOT,
        mount("/"),  # with medium: Memory
        mount("/var/lib/kubelet/pods/0f1c/volumes/kubernetes.io~csi/kubemend-cache/mount"),
        mount(MOUNTED + "/part"),
        mount(MOUNTED, "/var/cache"),
        mount(MOUNTED) + mount("/data"),  # over it
        mount(MOUNTED) + mount("/models", f"{CACHE_FOLDER}/trainer/xdg/models"),
        mount(MOUNTED) + mount("/models", f"{CACHE_FOLDER}/trainer"),
    ],
)
def test_no_other_volume_and_none_with_another_inside_is_emptied(mounts: str) -> None:
    assert cache_of(ENVIRON, mounts) == ""


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"XDG_CACHE_HOME": f"{CACHE_FOLDER}/xdg"},
        {"XDG_CACHE_HOME": f"{CACHE_FOLDER}/trainer/cuda"},
        {"XDG_CACHE_HOME": f"{CACHE_FOLDER}/../xdg"},
        {"XDG_CACHE_HOME": f"{CACHE_FOLDER}/a/b/xdg"},
        {**ENVIRON, "XDG_CACHE_HOME": f"{CACHE_FOLDER}/shared/xdg"},
        {**ENVIRON, "KUBEMEND_CACHE": f"{CACHE_FOLDER}/trainer"},
    ],
)
def test_container_whose_directory_is_not_known_keeps_its_cache(environ: dict[str, str]) -> None:
    assert cache_of(environ, mount(MOUNTED)) == ""


def test_directory_is_emptied_without_what_links_lead_to(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    for each in (volume / "trainer/a/b", volume / "other", outside):
        each.mkdir(parents=True)
        (each / "file").touch()
    (volume / "trainer/link").symlink_to(outside)
    (volume / "trainer/a/self").symlink_to("..")
    assert empty_directory(str(volume), "trainer", time.monotonic() + 60.0)
    assert [each.name for each in volume.iterdir()] == ["other"]
    (volume / "trainer").symlink_to(outside)
    assert empty_directory(str(volume), "trainer", time.monotonic() + 60.0)
    assert [each.name for each in volume.iterdir()] == ["other"]
    assert (outside / "file").exists()
    (tmp_path / "link").symlink_to(volume)
    with pytest.raises(NotADirectoryError):
        empty_directory(str(tmp_path / "link"), "other", time.monotonic() + 60.0)
    assert not empty_directory(str(volume), "trainer", time.monotonic() + 60.0)


def test_what_there_is_no_time_for_is_removed_with_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "trainer/a").mkdir(parents=True)
        assert empty_directory(str(tmp_path), "trainer", until=0.0)
    assert [each.name[: len(kubemend_run._ASIDE)] for each in tmp_path.iterdir()] == [kubemend_run._ASIDE] * 2
    (tmp_path / "trainer").mkdir()
    assert empty_directory(str(tmp_path), "trainer", time.monotonic() + 60.0)
    assert [*tmp_path.iterdir()] == []


def test_directories_of_any_depth_are_removed(tmp_path: Path) -> None:
    """Python's recursion has a limit, and so have the launcher's open files."""
    for each in ("trainer", f"{kubemend_run._ASIDE}earlier"):
        deepest = tmp_path / "/".join([each, *"x" * 300])
        deepest.mkdir(parents=True)
        (deepest / "file").touch()
    assert empty_directory(str(tmp_path), "trainer", time.monotonic() + 60.0)
    assert [*tmp_path.iterdir()] == []


def test_what_cannot_be_removed_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuses(name: str, *, dir_fd: int) -> None:
        tried.append(name)
        raise PermissionError(name)

    (tmp_path / "trainer").mkdir()
    monkeypatch.setattr("os.rmdir", refuses)
    assert empty_directory(str(tmp_path), "trainer", time.monotonic() + 60.0)
    assert len(tried) == 1


class Broken:
    """A launcher on a cache volume with a file that makes the program fail."""

    def __init__(self, launcher: Running) -> None:
        self.volume = launcher.folder / MOUNTED.lstrip("/")
        self.launcher = launcher
        (self.volume / "trainer/triton").mkdir(parents=True)
        (self.volume / "trainer/triton/broken").touch()
        (self.volume / "other").mkdir()
        launcher.environ.update(ENVIRON, PYTHONDONTWRITEBYTECODE="")
        launcher.program("events.say('broken' if os.path.exists(os.environ['TRITON_CACHE_DIR'] + '/broken') else 'ok')")

    async def fail_from(self, *options: str, spare: bool) -> None:
        """Have the program fail three times, the second and the third time after a restart."""
        self.launcher.start(*options, *(() if spare else ("--no-spare",)), under=(*NODE, str(self.volume)))
        for number in range(1, 4):
            await self.launcher.nth(number, "begin")
            if spare:
                await self.launcher.spares_ready(number)
            self.launcher.order("sys.exit(3)")
        await self.launcher.nth(4, "begin")
        self.launcher.order("sys.exit(0)")
        assert await self.launcher.ended() == 0


@pytest.fixture
def broken(launcher: Running) -> Broken:
    return Broken(launcher)


@pytest.mark.pythons
@pytest.mark.parametrize("spare", [True, False])
async def test_broken_cache_is_emptied_after_two_restarts_that_did_not_last(broken: Broken, spare: bool) -> None:
    """The spare has read it, too: the program starts without it."""
    await broken.fail_from(spare=spare)
    launcher = broken.launcher
    assert [len(launcher.events(each)) for each in ("broken", "ok")] == [3, 1]
    assert sorted(each.name for each in broken.volume.iterdir()) == ["other", "trainer"]
    assert not (broken.volume / "trainer/triton").exists()
    assert "the cache /var/cache/kubemend/trainer is emptied after 2 early failures\n" in launcher.stderr()
    dropped = "the spare is dropped: the cache, which it may have read, is emptied\n"
    assert (dropped in launcher.stderr()) is spare


async def test_cache_is_kept_if_the_pod_wants_that(broken: Broken) -> None:
    await broken.fail_from("--keep-cache", spare=False)
    assert len(broken.launcher.events("broken")) == 4
    assert (broken.volume / "trainer/triton/broken").exists()


async def test_cache_of_restarts_that_lasted_is_kept(broken: Broken) -> None:
    await broken.fail_from("--healthy-after", "0", spare=False)
    assert len(broken.launcher.events("broken")) == 4
