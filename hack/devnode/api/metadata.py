"""Objects without anything but their metadata, for who asks for no more (``PartialObjectMetadata`` of meta.k8s.io)."""

from collections.abc import Mapping
from typing import Any, Final

Object = dict[str, Any]

_AS: Final = "as=PartialObjectMetadata"
_VERSION: Final = "meta.k8s.io/v1"


def wanted(headers: Mapping[str, str]) -> bool:
    """Whether a request's first choice is metadata alone."""
    return _AS in headers.get("Accept", "").partition(",")[0]


def of(obj: Object) -> Object:
    """Return an object's metadata, as an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _VERSION, "metadata": obj["metadata"]}


def listing(whole: Object) -> Object:
    """Return a list, or a page of one, of metadata."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": _VERSION,
        "metadata": whole["metadata"],
        "items": [of(each) for each in whole["items"]],
    }
