import json

import pytest

from kubemend.common.kube import errors, paths

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
def test_conflict_means_already_exists_only_with_its_reason(
    status: int, reason: str, kind: type[errors.KubeError]
) -> None:
    """A contended quota answers 409 as well."""
    assert type(_error(status, json.dumps({"reason": reason}))) is kind


def _forbidden(said: str) -> errors.KubeError:
    return _error(403, json.dumps({"message": said, "reason": "Forbidden"}))


def test_rbac_refusal_names_the_missing_rule() -> None:
    said = 'pods "a" is forbidden: User "system:serviceaccount:x:y" cannot patch resource "pods/status" in API group ""'
    assert str(_forbidden(said)) == (
        f"cannot patch pods/status ml/a at https://api: {said}: "
        'allow verb "patch" on resource "pods/status" in the role of this service account'
    )


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'kubemend-agent-status' denied request: not this node",
            "the policy in the message refuses this; its binding defines where it applies",
        ),
        (
            'pods "a" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2',
            "raise the namespace's ResourceQuota, or free some of what it counts",
        ),
        (
            'pods "a" is forbidden: unable to create new content in namespace ml because it is being terminated',
            "the namespace is being deleted and accepts no new objects",
        ),
        (
            'pods "a" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
            "an admission plugin or webhook refuses this; RBAC allows it",
        ),
        ("", "an admission plugin or webhook refuses this; RBAC allows it"),
    ],
)
def test_admission_refusal_is_not_a_missing_rule(said: str, hint: str) -> None:
    assert _forbidden(said).hint == hint


def test_error_keeps_the_servers_message() -> None:
    assert _forbidden("not you").server_message == "not you"
    assert errors.ApiUnavailableError("no answer").server_message == "no answer"


def test_a_namespace_is_not_taken_for_an_object() -> None:
    target = paths.describe("POST", "/apis/batch/v1/namespaces/ml/jobs")
    error = errors.from_response(target, server="https://api", status=422, body="")
    assert error.what.startswith("cannot create jobs.batch in namespace ml at https://api: ")


@pytest.mark.parametrize("body", ["", "<html>\nbad gateway", "[]", "null", '{"message": null}', "\x00"])
def test_bodies_of_any_kind_give_one_line(body: str) -> None:
    assert "\n" not in str(_error(502, body))


@pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), (None, None), ("soon", None), ("-1", None)])
def test_retry_after_is_read_in_its_seconds_form(header: str | None, seconds: float | None) -> None:
    assert _error(429, "", header).retry_after == seconds
