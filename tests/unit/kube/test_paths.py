import pytest

from kubemend.common.kube import paths


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/pods", "list pods"),
        ("GET", "/api/v1/namespaces/ml/pods/a", "get pods ml/a"),
        ("PATCH", "/api/v1/namespaces/ml/pods/a/status", "patch pods/status ml/a"),
        ("POST", "/apis/batch/v1/namespaces/ml/jobs", "create jobs.batch in namespace ml"),
        ("DELETE", "/api/v1/nodes/n1", "delete nodes n1"),
        ("GET", "/api/v1/namespaces", "list namespaces"),
        ("GET", "/api/v1/namespaces/ml", "get namespaces ml"),
        ("PUT", "/api/v1/namespaces/ml/status", "update namespaces/status ml"),
        ("GET", "/version", "get /version"),
    ],
)
def test_requests_are_described_in_rbac_terms(method: str, path: str, expected: str) -> None:
    assert str(paths.describe(method, path)) == expected


def test_watches_have_a_verb_of_their_own() -> None:
    assert paths.describe("GET", paths.PODS, watch=True).verb == "watch"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "x/status", "x%2Fstatus", "x" * 254])
def test_invalid_name_has_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an object"):
        paths.one("jobs", name, namespace="ml", group="batch")


def test_one_object_is_named_whatever_its_name() -> None:
    assert paths.one("jobs", "a b?c", namespace="ml", group="batch") == "/apis/batch/v1/namespaces/ml/jobs/a%20b%3Fc"


def test_names_are_quoted() -> None:
    assert paths.pod("a/b", "c d") == "/api/v1/namespaces/a%2Fb/pods/c%20d"
