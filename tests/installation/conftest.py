"""Provide one cluster for all tests of an installation."""

from collections.abc import Iterator

import pytest

from tests.installation import installed


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[installed.Cluster]:
    """A cluster on which kubemend is not yet installed."""
    with installed.running(tmp_path_factory.mktemp("installation")) as made:
        yield made
