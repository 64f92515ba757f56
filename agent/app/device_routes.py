"""Handlers for device requests on the control socket."""

import dataclasses
import enum
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from aiohttp import web

from kubemend.agent.app import control
from kubemend.agent.control import devices
from kubemend.agent.control.messages import BadRequestError
from kubemend.agent.devices.operator_commands import NoSuchDeviceError, OperatorCommands, StillHeldError

log = structlog.get_logger(__name__)

_STATUS: Final[dict[type[Exception], int]] = {BadRequestError: 400, NoSuchDeviceError: 404, StillHeldError: 503}

_Answer = Callable[[web.Request], Awaitable[dict[str, Any]]]


class DeviceRoutes:
    """The routes; ``table`` returns them for the application that serves the socket."""

    def __init__(self, operators: OperatorCommands) -> None:
        self._operators = operators

    def table(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get(devices.LIST, _answering(self._list)),
            web.post(devices.CLEAR, _answering(self._clear)),
            web.post(devices.RELEASE, _answering(self._release)),
            web.post(devices.RESUME, _answering(self._resume)),
        ]

    async def _list(self, _: web.Request) -> dict[str, Any]:
        return {"devices": [dataclasses.asdict(verdict) for verdict in self._operators.verdicts()]}

    async def _clear(self, http: web.Request) -> dict[str, Any]:
        body = devices.Body.parse(await http.read(), known=frozenset({"device"}))
        return dataclasses.asdict(self._operators.clear(body.name("device"), operator=control.client_name(http)))

    async def _release(self, http: web.Request) -> dict[str, Any]:
        body = devices.Body.parse(await http.read(), known=frozenset({"seconds"}))
        await self._operators.release(
            seconds=body.seconds("seconds"), timeout=devices.RELEASE_SECONDS, operator=control.client_name(http)
        )
        return {}

    async def _resume(self, http: web.Request) -> dict[str, Any]:
        devices.Body.parse(await http.read(), known=frozenset())
        self._operators.resume()
        return {}


def _answering(answer: _Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(http: web.Request) -> web.Response:
        try:
            return web.json_response(await answer(http), dumps=_dumps)
        except tuple(_STATUS) as error:
            log.info("request.refused", path=http.path, error=str(error))
            return web.json_response({"error": str(error)}, status=_STATUS[type(error)])

    return handle


def _dumps(body: object) -> str:
    """Return one line, as the client expects."""
    return json.dumps(body, default=_value) + "\n"


def _value(member: object) -> object:
    assert isinstance(member, enum.Enum), f"not serializable: {member!r}"
    return member.value
