"""Identify the client on the control socket."""

from aiohttp import web

from kubemend.common import unix_sockets


def uid(http: web.Request) -> int:
    """Return the user id of the client process."""
    assert http.transport is not None, "the request has just been read"
    return unix_sockets.credentials(http.transport.get_extra_info("socket")).uid


def name(http: web.Request) -> str:
    """Return the client's name for conditions and logs."""
    return f"uid {uid(http)}"
