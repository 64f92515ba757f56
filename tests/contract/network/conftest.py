"""Run one suite on a stand-in for netlink and on real links in a namespace of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.network import real
from tests.fakes.netlink import FakeKernel
from tests.fakes.nic_node import Links, NicNode, Notes
from tests.fakes.sysfs_tree import SysfsTree


@pytest.fixture
def real_links() -> Iterator[real.RealLinks]:
    """Real links, where network namespaces can be made."""
    if (reason := real.missing()) is not None:
        pytest.skip(reason)
    links = real.RealLinks()
    yield links
    links.close()


@pytest.fixture(params=["stand-in", "kernel"])
def links(request: pytest.FixtureRequest) -> Links:
    """The links under test."""
    made: Links = FakeKernel() if request.param == "stand-in" else request.getfixturevalue("real_links")
    return made


@pytest.fixture
def node(tmp_path: Path, links: Links) -> NicNode:
    """A node without NICs."""
    return NicNode(SysfsTree(tmp_path / "sys"), links)


@pytest.fixture
def notes() -> Notes:
    """The findings of the source."""
    return Notes()
