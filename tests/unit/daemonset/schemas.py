"""Validate objects by the schemas of the client library: fields, types, and required fields.

A real API server checks more (``tests/contract/api``); this needs none.
"""

from typing import Any

from kubernetes.aio.client import models

from tests.unit.daemonset.manifests import Json


def is_known(obj: Json) -> bool:
    """Return whether there is a schema for the object's kind; custom resources have none."""
    return hasattr(models, _model(obj))


def problems(obj: Json) -> str:
    """Return an object's errors, each with its place; empty when it is valid."""
    model: Any = getattr(models, _model(obj))
    try:
        model.model_validate(obj)
    except ValueError as error:
        return str(error)
    return ""


def _model(obj: Json) -> str:
    version = obj["apiVersion"].rpartition("/")[2]
    return f"{version[0].upper()}{version[1:]}{obj['kind']}"
