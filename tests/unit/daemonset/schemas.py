"""Validate objects by the schemas of the client library: fields, types, and required fields.

A real API server checks more (``tests/contract/api``); this needs none.
"""

import functools
from typing import Any

from tests.unit.daemonset.manifests import Json


def is_known(obj: Json) -> bool:
    """Return whether there is a schema for the object's kind; custom resources have none."""
    return hasattr(_models(), _model(obj))


def problems(obj: Json) -> str:
    """Return an object's errors, each with its place; empty when it is valid."""
    model: Any = getattr(_models(), _model(obj))
    try:
        model.model_validate(obj)
    except ValueError as error:
        return str(error)
    return ""


@functools.cache
def _models() -> Any:
    """Return all models: they take a second, so not every worker process loads them."""
    from kubernetes.aio.client import models

    return models


def _model(obj: Json) -> str:
    version = obj["apiVersion"].rpartition("/")[2]
    return f"{version[0].upper()}{version[1:]}{obj['kind']}"
