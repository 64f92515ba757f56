"""Import the used parts of ``kubernetes.aio``: finding and trusting an API server, and a session with it.

Importing anything of the package normally loads both its halves, requests, oauthlib and (for ``ApiClient``) pydantic:
20 MB on every node, where these modules alone take 1 MB. So they are imported without their packages.
"""

from kubemend.common import footprint

_CLIENT = "kubernetes.aio.client"

with footprint.import_without_package("kubernetes", "kubernetes.aio", "kubernetes.aio.utils", _CLIENT) as _shells:
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

    if _CLIENT in _shells:  # the loaders import two names from it; the second (pydantic, 6 MB) only to return it
        vars(_shells[_CLIENT]).update(Configuration=Configuration, ApiClient=None)
    from kubernetes.aio import config

__all__ = ["Configuration", "RESTClientObject", "config"]
