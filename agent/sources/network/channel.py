"""A netlink socket that is read indefinitely and reopened after every failure and every loss of messages."""

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable

import structlog

from kubemend.agent.sources.network.netlink import ListingError
from kubemend.agent.sources.network.sockets import Listener, OverflowedError
from kubemend.common import aio

log = structlog.get_logger(__name__)


class ChannelName(enum.Enum):
    """The kind of messages of a socket."""

    LINKS = "links"
    UEVENTS = "uevents"


class Channel:
    """Keeps one socket open and forwards its messages."""

    def __init__(
        self,
        name: ChannelName,
        *,
        connect: Callable[[], Awaitable[Listener]],
        begin: Callable[[], Awaitable[None]],
        take: Callable[[bytes], None],
        deaf: Callable[[OSError | ListingError], None],
        overflowed: Callable[[], None],
    ) -> None:
        """Create the channel.

        ``connect`` opens a socket. ``begin`` then reads the current state, because the socket only reports changes.
        Both raise OSError or ListingError. ``take`` receives each message, ``deaf`` the error while no messages can be
        received. ``overflowed`` is called when messages were lost, before the socket is reopened.
        """
        self._name = name
        self._connect = connect
        self._begin = begin
        self._take = take
        self._deaf = deaf
        self._overflowed = overflowed

    async def run(self) -> None:
        """Listen indefinitely.

        After a loss the socket is replaced: its queued messages are older than the lost ones.
        """
        backoff = aio.Backoff(first=0.05, limit=10.0)
        while True:
            try:
                await self._listen(backoff)
            except OverflowedError:
                log.warning("network.overflowed", channel=self._name.value)
                self._overflowed()
            except (OSError, ListingError) as error:  # a TimeoutError is an OSError
                self._deaf(error)
            await backoff.wait()

    async def _listen(self, backoff: aio.Backoff) -> None:
        with contextlib.closing(await self._connect()) as listener:
            await self._begin()
            while True:
                await listener.wait()
                for message in listener.read():
                    self._take(message)
                backoff.reset()
                await asyncio.sleep(0)  # let other tasks run during a flood of messages
