"""How much memory a pod may use and uses, read from cgroups of plain files."""

from pathlib import Path

import pytest

from kubemend.agent.actuator.hold import pod_memory
from kubemend.agent.restart.headroom import PodMemory

POD = "kubepods/burstable/pod7c65af3d-2606-45c8-a7fd-54c5e0cf09b2"
CONTAINER = f"{POD}/{'a' * 64}"


def written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path) -> PodMemory | None:
    return pod_memory.of_process(7, proc=root / "proc", mounted_at=root / "cgroup")


def version_2(root: Path, *, limit: str) -> None:
    written(
        root,
        {
            "proc/7/cgroup": f"0::/{CONTAINER}/inner\n",
            "cgroup/cgroup.controllers": "cpu memory\n",
            f"cgroup/{POD}/memory.max": limit,
            f"cgroup/{POD}/memory.current": "700\n",
            f"cgroup/{POD}/memory.stat": "anon 600\nfile 100\ninactive_file 60\nactive_file 30\n",
        },
    )


def test_of_process_reads_version_2(tmp_path: Path) -> None:
    version_2(tmp_path, limit="1000\n")
    assert read(tmp_path) == PodMemory(limit=1000, used=700, page_cache=90)


@pytest.mark.parametrize("limit", ["max\n", "", "-1\n"])
def test_of_process_without_a_limit_knows_nothing(tmp_path: Path, limit: str) -> None:
    version_2(tmp_path, limit=limit)
    assert read(tmp_path) is None


def test_of_process_reads_version_1_next_to_a_version_2_without_memory(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "proc/7/cgroup": f"4:cpu,memory:/{CONTAINER}\n0::/{CONTAINER}\n",
            "cgroup/unified/cgroup.controllers": "hugetlb\n",
            f"cgroup/memory/{POD}/memory.limit_in_bytes": "1000\n",
            f"cgroup/memory/{POD}/memory.usage_in_bytes": "700\n",
            f"cgroup/memory/{POD}/memory.stat": "inactive_file 1\ntotal_inactive_file 60\ntotal_active_file 30\n",
        },
    )
    assert read(tmp_path) == PodMemory(limit=1000, used=700, page_cache=90)


@pytest.mark.parametrize("cgroup", [None, "0::/system.slice/sshd.service\n", "nonsense", f"0::/{CONTAINER}\n"])
def test_of_process_that_is_gone_or_in_no_container_knows_nothing(tmp_path: Path, cgroup: str | None) -> None:
    written(tmp_path, {"proc/7/cgroup": cgroup} if cgroup is not None else {})
    assert read(tmp_path) is None
