import json

import pytest

from common.kube import errors, paths

_TARGET = paths.describe("PATCH", "/api/v1/namespaces/ml/pods/a/status")


def _error(status: int, body: str, retry_after: str | None = None) -> errors.KubeError:
    return errors.from_response(_TARGET, server="https://api", status=status, body=body, retry_after=retry_after)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidError),
        (401, errors.UnauthorizedError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (405, errors.InvalidError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (422, errors.InvalidError),
        (429, errors.ApiUnavailableError),
        (500, errors.ApiUnavailableError),
        (501, errors.InvalidError),
        (504, errors.ApiUnavailableError),
        (599, errors.ApiUnavailableError),
    ],
)
def test_every_status_has_its_error(status: int, kind: type[errors.KubeError]) -> None:
    error = _error(status, "")
    assert type(error) is kind
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (409, "Conflict", errors.ConflictError),
        (409, "", errors.ConflictError),
        (403, "AlreadyExists", errors.ForbiddenError),
    ],
)
def test_a_conflict_says_that_something_is_there_only_in_so_many_words(
    status: int, reason: str, kind: type[errors.KubeError]
) -> None:
    """A quota that many ask for answers 409 as well."""
    assert type(_error(status, json.dumps({"reason": reason}))) is kind


def test_forbidden_names_the_rule_that_is_missing() -> None:
    text = str(_error(403, json.dumps({"message": "pods is forbidden", "reason": "Forbidden"})))
    assert text == (
        "cannot patch pods/status ml/a at https://api: pods is forbidden: "
        'allow verb "patch" on resource "pods/status" in the role of this service account'
    )


def test_a_policy_that_refuses_is_no_missing_rule() -> None:
    said = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'kubemend-agent-status' denied request: not this node"
    text = str(_error(403, json.dumps({"message": said, "reason": "Forbidden"})))
    assert "allow verb" not in text
    assert text.endswith(": the policy that it names refuses this; its binding says where it applies")


@pytest.mark.parametrize("body", ["", "<html>\nbad gateway", "[]", "null", '{"message": null}', "\x00"])
def test_bodies_of_any_kind_give_one_line(body: str) -> None:
    assert "\n" not in str(_error(502, body))


@pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), (None, None), ("soon", None), ("-1", None)])
def test_retry_after_is_read_in_its_seconds_form(header: str | None, seconds: float | None) -> None:
    assert _error(429, "", header).retry_after == seconds
