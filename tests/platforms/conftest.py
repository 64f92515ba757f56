"""Provide a cluster with Kubernetes' own controllers for each test, and print what the tests have seen as a table."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tabulate

from hack.devnode import node
from hack.devnode.cluster import Cluster
from tests import clusters

_PROPERTY = "platform-row"

Row = dict[str, Any]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes: one has room for all members of a test."""
    with clusters.running(f"platforms-{os.getpid()}", nodes=2, options=node.Options(gpus=4)) as made:
        yield made


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[Row], None]:
    """Add a row to the table that is printed after the tests."""
    return lambda row: record_property(_PROPERTY, json.dumps(row))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    rows = [
        json.loads(text)
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == _PROPERTY and report.when == "call"
    ]
    if rows:
        terminalreporter.section("platforms")
        terminalreporter.write_line(tabulate.tabulate(rows, headers="keys", disable_numparse=True))
