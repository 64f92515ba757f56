"""Load ``kubernetes.aio`` without what we never use.

The package imports its synchronous half and helpers of both halves as soon as anything of it is imported: requests,
oauthlib and more, 9 MB of memory and 0.3 s on every node. Here those are put off until somebody touches them
(``importlib.util.LazyLoader``). Import what is needed of ``kubernetes`` from here.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

_UNUSED: Final = frozenset(
    (
        *(
            f"kubernetes.{name}"
            for name in ("client", "config", "dynamic", "informer", "leaderelection", "stream", "utils", "watch")
        ),
        *(f"kubernetes.aio.{name}" for name in ("dynamic", "leaderelection", "stream", "utils", "watch")),
    )
)


class _PutOff(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _UNUSED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _PutOff())

from kubernetes.aio import client, config  # noqa: E402 - only now

__all__ = ["client", "config"]
