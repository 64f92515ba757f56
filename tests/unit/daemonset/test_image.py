"""The Dockerfile agrees with the package and the manifests, and keeps some rules. (tests/installation builds it.)"""

import fnmatch
import json
import re
import tomllib
from pathlib import PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.daemonset import controller_manifests, manifests

TEXT = (manifests.REPOSITORY / "Dockerfile").read_text()
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line
]
HASHED = re.compile(r"^(?P<name>\S+)==(?P<version>\S+).* \\\n    --hash=sha256:[0-9a-f]{64}\b", re.MULTILINE)
LOCK = (manifests.REPOSITORY / "requirements.lock").read_text()
LOCKED = {canonicalize_name(found["name"]): found["version"] for found in HASHED.finditer(LOCK)}
BUILD_LOCK = (manifests.REPOSITORY / "requirements-build.lock").read_text()


def arguments(instruction: str) -> list[list[str]]:
    """Return the arguments of every instruction of a kind."""
    return [rest.split() for word, rest in INSTRUCTIONS if word == instruction]


def variables() -> dict[str, str]:
    """Return the variables of ENV."""
    return dict(word.split("=", 1) for words in arguments("ENV") for word in words)


def labels() -> dict[str, str]:
    """Return the labels of LABEL."""
    (rest,) = [rest for word, rest in INSTRUCTIONS if word == "LABEL"]
    return dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', rest))


def defaults() -> dict[str, str]:
    """Return the defaults of ARG, if any."""
    return dict(word.split("=", 1) for (word,) in arguments("ARG") if "=" in word)


def project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())["project"]
    return found


def test_build_tools_stay_in_their_own_stage() -> None:
    build, final = arguments("FROM")
    assert build[1:] == ["AS", "build"]
    assert final == build[:1]
    assert ["--from=build", "/opt/kubemend", "/opt/kubemend"] in arguments("COPY")


def test_modes_of_files_do_not_depend_on_the_umask_of_the_checkout() -> None:
    last = max(number for number, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM")
    assert all(rest.startswith("--from=build ") for word, rest in INSTRUCTIONS[last:] if word == "COPY")


def test_the_base_can_be_pinned_by_its_digest_and_is_of_no_registry() -> None:
    assert INSTRUCTIONS[0][0] == "ARG", "before the first FROM, else FROM does not see it"
    assert {words[0] for words in arguments("FROM")} == {"${PYTHON}"}
    name, _, tag = defaults()["PYTHON"].partition(":")
    assert "/" not in name, "the builder chooses the registry"
    assert re.fullmatch(r"\d+\.\d+-slim-\w+", tag), "a version, and Debian's, but never latest"
    assert f">={tag.partition('-')[0]}" == project()["requires-python"]


def test_no_instruction_makes_the_image_unsafe_or_large() -> None:
    used = {word for word, _ in INSTRUCTIONS}
    assert used <= {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "LABEL", "USER", "ENTRYPOINT", "CMD"}
    scripts = [rest for word, rest in INSTRUCTIONS if word == "RUN"]
    assert scripts
    for script in scripts:
        assert not re.search(r"\b(curl|wget|sudo|chmod|ssh|git)\b|http", script), "all comes by COPY and pip"
        assert "pip install" not in script or "--no-cache-dir" in script
        assert ";" not in script or script.startswith("set -eu;"), "a step that fails ends the build"
    secret = re.compile(r"token|secret|passw|key", re.IGNORECASE)
    assert not [name for name in (*defaults(), *variables()) if secret.search(name)]
    assert all(words[0].startswith("/") for words in arguments("WORKDIR"))


def test_programs_are_started_without_a_shell() -> None:
    started = [rest for word, rest in INSTRUCTIONS if word in ("ENTRYPOINT", "CMD")]
    assert len(started) == 2
    assert all(isinstance(json.loads(rest), list) for rest in started)


def test_image_is_not_root_and_only_the_agent_requests_it() -> None:
    ((user,),) = arguments("USER")
    words = [word for word, _ in INSTRUCTIONS]
    assert "RUN" not in words[words.index("USER") :]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "numbers: kubelet compares no names (runAsNonRoot)"
    context = controller_manifests.one("Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert manifests.agent()["securityContext"]["runAsUser"] == 0


def test_labels_match_the_package() -> None:
    assert labels()["title"] == project()["name"]
    assert labels()["description"] == project()["description"]
    assert labels()["licenses"] == project()["license"]
    assert (labels()["version"], defaults()["VERSION"]) == ("${VERSION}", project()["version"])
    assert labels()["base.name"] == "${PYTHON}"
    given = {name.strip("${}") for name in labels().values() if name.startswith("${")}
    declared = {words[0].partition("=")[0] for words in arguments("ARG")}
    assert given <= declared


def test_image_contains_only_locked_packages() -> None:
    installs = [
        part for word, rest in INSTRUCTIONS if word == "RUN" for part in rest.split("&&") if " install " in part
    ]
    tools, locked, ours = installs
    assert "--require-hashes" in tools
    assert "-r requirements-build.lock" in tools
    assert "--require-hashes -r requirements.lock" in locked
    assert "--no-deps --no-index /wheels/" in ours


def test_what_builds_the_package_is_locked_too() -> None:
    (build,) = [part for _, rest in INSTRUCTIONS for part in rest.split("&&") if " pip wheel " in part]
    assert "--no-build-isolation" in build, "pip would fetch the newest"
    locked = {canonicalize_name(found["name"]): found["version"] for found in HASHED.finditer(BUILD_LOCK)}
    settings = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())
    for one in map(Requirement, settings["build-system"]["requires"]):
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), "make lock"


def test_bytecode_does_not_depend_on_the_dates_of_files() -> None:
    scripts = [rest for word, rest in INSTRUCTIONS if word == "RUN"]
    installs = [part for rest in scripts for part in rest.split("&&") if "/opt/kubemend/bin/python install" in part]
    assert all("--no-compile" in part for part in installs)
    assert any("compileall -q -f --invalidation-mode=unchecked-hash /opt/kubemend" in rest for rest in scripts)


def test_all_that_the_package_needs_is_locked_by_version_and_hash() -> None:
    asked = [*project()["dependencies"], *project()["optional-dependencies"]["traces"]]
    for one in map(Requirement, asked):
        version = LOCKED.get(canonicalize_name(one.name))
        assert version is not None, f"requirements.lock lacks {one.name}: make lock"
        assert one.specifier.contains(version), f"requirements.lock has {one.name} {version}, not {one}: make lock"
    assert len(LOCKED) == len(re.findall(r"^\S+==", LOCK, re.MULTILINE)), "pip refuses what has no hash"


def test_copied_files_are_sent_to_the_builder() -> None:
    ignored = (manifests.REPOSITORY / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {word for words in arguments("COPY") if not words[0].startswith("--") for word in words[:-1]}
    assert "*" in ignored
    assert copied == sent
    assert all((manifests.REPOSITORY / path).exists() for path in copied)


def test_all_files_of_the_package_are_copied() -> None:
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
    assert "ln -s /host$place/$library /opt/nvml/$number/$library" in script
    assert {"libnvidia-ml.so.1", "libcuda.so.1"} <= set(script.split())
    for place in places:
        assert any(PurePosixPath(f"/host{place}").is_relative_to(mount) for mount in mounted), place
    assert variables()["LD_LIBRARY_PATH"].split(":") == [f"/opt/nvml/{n}" for n in range(1, len(places) + 1)]
