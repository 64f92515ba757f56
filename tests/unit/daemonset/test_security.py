"""docs/security.md agrees with the manifests on rights, mounts and policies, and its references exist."""

import functools
import re
from collections.abc import Iterator

import pytest

from tests.unit.daemonset import manifests
from tests.unit.daemonset.manifests import Json

TEXT = (manifests.REPOSITORY / "docs" / "security.md").read_text()

Row = list[str]


@functools.cache
def objects() -> list[Json]:
    default = manifests.build(manifests.DEFAULT)
    known = {manifests.identity(obj) for obj in default}
    controllers = manifests.combined(manifests.DAEMONSET / "controller", manifests.DAEMONSET / "hub-from-nodes")
    return [
        *default,
        *manifests.render(("caches", "device-taints", "launcher", "pod-groups", "restart-namespaces")),
        *(obj for obj in controllers if manifests.identity(obj) not in known),
    ]


def roles() -> dict[str, Json]:
    """Return the roles, by their names on the page."""
    found = [obj for obj in objects() if obj["kind"] in ("ClusterRole", "Role")]
    return {f"{obj['kind']} `{obj['metadata']['name']}`": obj for obj in found}


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, found, rest = TEXT.partition(f"{heading}\n")
    assert found, heading
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[Row]:
    """Return the cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def rights(role: Json) -> Iterator[tuple[frozenset[str], str]]:
    """Yield a role's verbs and resources, as the tables write them."""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield frozenset(rule["verbs"]), f"{group}/{resource}" if group else resource


def test_every_right_is_in_the_table_of_its_role_and_no_other() -> None:
    for name, role in roles().items():
        (heading,) = re.findall(rf"^### .*: {re.escape(name)}$", TEXT, re.MULTILINE)
        listed = [(frozenset(verbs.split(", ")), resource.strip("`")) for verbs, resource, _ in rows(section(heading))]
        assert sorted(map(str, listed)) == sorted(map(str, rights(role))), name


def test_every_role_has_a_table() -> None:
    assert set(re.findall(r"(?:Cluster)?Role `[\w-]+`$", TEXT, re.MULTILINE)) == set(roles())


def test_every_way_into_the_host_is_in_the_table() -> None:
    documented = {name.strip("`") for name, *_ in rows(section("## On the node"))}
    mounted = {volume["hostPath"]["path"] for volume in manifests.pod()["volumes"]}
    spec = manifests.pod()
    settings = {name for name in ("hostPID", "hostNetwork", "hostIPC") if spec.get(name)}
    assert documented == mounted | settings | {"privileged"}
    read_only = {
        mount["mountPath"].removeprefix("/host") for mount in manifests.agent()["volumeMounts"] if mount.get("readOnly")
    }
    assert {
        name.strip("`") for name, _, reason in rows(section("## On the node")) if "read-only" in reason
    } == read_only


def test_every_policy_is_in_the_table() -> None:
    there = {obj["metadata"]["name"] for obj in objects() if obj["kind"] in manifests.POLICIES}
    assert {name.strip("`") for name, _ in rows(section("### Policies"))} == there


THREATS = re.findall(r"^### (A .*)$", TEXT, re.MULTILINE)
REFERENCES = [row[-1].strip("`") for threat in THREATS for row in rows(section(f"### {threat}"))]


def test_every_claim_about_a_threat_has_evidence() -> None:
    assert len(THREATS) == 6
    assert all(re.fullmatch(r"[\w./-]+::.+", reference) for reference in REFERENCES)
    assert len(REFERENCES) > 40


@pytest.mark.parametrize("reference", REFERENCES)
def test_evidence_of_a_claim_exists(reference: str) -> None:
    name, _, text = reference.partition("::")
    assert text in (manifests.REPOSITORY / name).read_text()
