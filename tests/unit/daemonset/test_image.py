"""The Dockerfile agrees with the package and with the DaemonSet. (Building it takes a registry; see docs.)"""

import fnmatch
import re
import tomllib
from pathlib import PurePosixPath

from tests.unit.daemonset import manifests

TEXT = (manifests.REPOSITORY / "Dockerfile").read_text()
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line
]


def arguments(instruction: str) -> list[list[str]]:
    """Return the words of every instruction of a kind."""
    return [rest.split() for word, rest in INSTRUCTIONS if word == instruction]


def variables() -> dict[str, str]:
    """Return what ENV sets."""
    return dict(word.split("=", 1) for words in arguments("ENV") for word in words)


def test_the_tools_that_build_stay_in_a_stage_of_their_own() -> None:
    build, final = arguments("FROM")
    assert build[1:] == ["AS", "build"]
    assert final == build[:1]
    assert ["--from=build", "/opt/kubemend", "/opt/kubemend"] in arguments("COPY")
    assert "/" not in final[0], "no registry: whoever builds chooses it"


def test_what_is_copied_is_sent_to_the_builder() -> None:
    ignored = (manifests.REPOSITORY / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {word for words in arguments("COPY") if not words[0].startswith("--") for word in words[:-1]}
    assert "*" in ignored
    assert copied == sent
    assert all((manifests.REPOSITORY / path).exists() for path in copied)


def test_all_that_the_package_is_made_of_is_copied() -> None:
    settings = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())
    packages = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    copied = {word for words in arguments("COPY") if not words[0].startswith("--") for word in words[:-1]}
    assert all(any(fnmatch.fnmatch(path, package) for path in copied) for package in packages)
    assert {settings["project"]["readme"], *settings["project"]["license-files"], "pyproject.toml"} <= copied


def test_the_image_runs_what_the_daemon_set_expects() -> None:
    scripts = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert arguments("ENTRYPOINT") == [['["kubemend"]']]
    assert "kubemend" in scripts
    assert "command" not in manifests.agent()


def test_the_drivers_library_is_searched_where_the_manifests_mount_it() -> None:
    (script,) = [rest for word, rest in INSTRUCTIONS if word == "RUN" and "libnvidia-ml.so.1" in rest]
    places = re.findall(r"(?<=\s)/[\w./$-]+(?=\s)", script.partition(" in ")[2].partition(" ; do")[0] + " ")
    mounted = [PurePosixPath(mount["mountPath"]) for mount in manifests.agent(["gke"])["volumeMounts"]]
    assert "/host$place/libnvidia-ml.so.1" in script
    for place in places:
        assert any(PurePosixPath(f"/host{place}").is_relative_to(mount) for mount in mounted), place
    assert variables()["LD_LIBRARY_PATH"].split(":") == [f"/opt/nvml/{n}" for n in range(1, len(places) + 1)]
