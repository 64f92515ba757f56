"""Stand in for systemd-logind, and for systemd's jobs, on a private bus: ``python -m tests.devnode.logind``.

It has what takes part in the machine's shutdown (org.freedesktop.login1(5), org.freedesktop.systemd1(5)): delay locks,
the signal before the shutdown, and its cancellation. Kubelet uses them for its graceful node shutdown
(pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go). Nothing shuts down: where a real machine would go down, once its
delay locks are released, this one stays as it is until the shutdown is cancelled.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from typing import Annotated, Final

import click
import structlog
from dbus_fast import BusType, DBusError, Message, NameFlag, PropertyAccess, RequestNameReply
from dbus_fast.aio import MessageBus
from dbus_fast.annotations import DBusBool, DBusSignature, DBusStr, DBusUInt64, DBusUnixFd
from dbus_fast.service import ServiceInterface, dbus_method, dbus_property, dbus_signal

log = structlog.get_logger(__name__)

LOGIND: Final = "org.freedesktop.login1"
LOGIND_PATH: Final = "/org/freedesktop/login1"
MANAGER: Final = "org.freedesktop.login1.Manager"
SYSTEMD: Final = "org.freedesktop.systemd1"
SYSTEMD_PATH: Final = "/org/freedesktop/systemd1"
JOBS: Final = "org.freedesktop.systemd1.Manager"

_IN_PROGRESS: Final = "org.freedesktop.login1.OperationInProgress"
_MICROSECOND: Final = 1e-6

Inhibitors = Annotated[list[list[str | int]], DBusSignature("a(ssssuu)")]


@dataclass(frozen=True, slots=True)
class Lock:
    """An inhibitor lock: taken by ``who`` for ``what``, held for as long as ``who`` keeps its descriptor open."""

    what: str
    who: str
    why: str
    mode: str


class Manager(ServiceInterface):
    """logind's manager."""

    def __init__(self, bus: MessageBus, *, inhibit_delay_max: float) -> None:
        """``inhibit_delay_max``: seconds, ``InhibitDelayMaxSec`` of logind.conf(5)."""
        super().__init__(MANAGER)
        self._bus = bus
        self._inhibit_delay_max = inhibit_delay_max
        self._locks: dict[int, Lock] = {}
        self._preparing = False
        self._sending: set[asyncio.Task[None]] = set()

    @dbus_property(access=PropertyAccess.READ, name="InhibitDelayMaxUSec")
    def inhibit_delay_max(self) -> DBusUInt64:
        """Return for how long delay locks hold a shutdown up."""
        return round(self._inhibit_delay_max / _MICROSECOND)

    @dbus_property(access=PropertyAccess.READ, name="PreparingForShutdown")
    def preparing_for_shutdown(self) -> DBusBool:
        """Return whether a shutdown has begun."""
        return self._preparing

    @dbus_method(name="Inhibit")
    def inhibit(self, what: DBusStr, who: DBusStr, why: DBusStr, mode: DBusStr) -> DBusUnixFd:
        """Give a lock. Its holder releases it by closing the descriptor."""
        if mode == "delay" and self._preparing:
            raise DBusError(_IN_PROGRESS, "The operation inhibition has been requested for is already running")
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self._locks[ours] = Lock(what, who, why, mode)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._released, ours)
        sending = loop.create_task(self._close_when_sent(theirs), name=f"lock of {who}")
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        log.info("logind.locked", what=what, who=who, mode=mode)
        return theirs

    async def _close_when_sent(self, descriptor: int) -> None:
        """Close our copy. Messages are sent in order: the answer has gone once the bus has answered this one."""
        ping = Message(
            destination="org.freedesktop.DBus",
            path="/org/freedesktop/DBus",
            interface="org.freedesktop.DBus.Peer",
            member="Ping",
        )
        try:
            await self._bus.call(ping)
        finally:
            os.close(descriptor)

    def _released(self, ours: int) -> None:
        """The other end was closed: nothing is ever written to it."""
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        log.info("logind.released", who=self._locks.pop(ours).who, locks=len(self._locks))

    @dbus_method(name="ListInhibitors")
    def list_inhibitors(self) -> Inhibitors:
        """Return the locks that are held. User and process are those of this stand-in."""
        return [[each.what, each.who, each.why, each.mode, os.getuid(), os.getpid()] for each in self._locks.values()]

    @dbus_method(name="PowerOff")
    def power_off(self, interactive: DBusBool) -> None:
        """Begin a shutdown. ``interactive`` would ask for a password."""
        if self._preparing:
            raise DBusError(_IN_PROGRESS, "There's already a shutdown or sleep operation in progress")
        self._preparing = True
        self.prepare_for_shutdown()
        log.info("logind.shutdown_begun", locks=len(self._locks))

    def cancel(self) -> None:
        """End a shutdown that has begun, as logind does when systemd's job for it was cancelled."""
        if self._preparing:
            self._preparing = False
            self.prepare_for_shutdown()
            log.info("logind.shutdown_cancelled")

    @dbus_signal(name="PrepareForShutdown")
    def prepare_for_shutdown(self) -> DBusBool:
        """Signal to all clients that a shutdown begins, or that it was cancelled."""
        return self._preparing


class Jobs(ServiceInterface):
    """systemd's manager: the job of the shutdown."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(JOBS)
        self._manager = manager

    @dbus_method(name="ClearJobs")
    def clear_jobs(self) -> None:
        """Cancel all jobs, as ``systemctl cancel`` does."""
        self._manager.cancel()


@click.command()
@click.option("--bus", "address", required=True, help="The address of the bus.")
@click.option("--inhibit-delay-max", type=float, required=True, help="Seconds: InhibitDelayMaxSec of logind.conf.")
def main(*, address: str, inhibit_delay_max: float) -> None:
    """Stand in for logind until SIGTERM."""
    asyncio.run(_serve(address, inhibit_delay_max=inhibit_delay_max))


async def _serve(address: str, *, inhibit_delay_max: float) -> None:
    bus = await MessageBus(bus_address=address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True).connect()
    manager = Manager(bus, inhibit_delay_max=inhibit_delay_max)
    bus.export(LOGIND_PATH, manager)
    bus.export(SYSTEMD_PATH, Jobs(manager))
    for name in (SYSTEMD, LOGIND):  # logind's last: callers wait for it
        answer = await bus.request_name(name, NameFlag.DO_NOT_QUEUE)
        assert answer is RequestNameReply.PRIMARY_OWNER, f"{name} has an owner already"
    work = asyncio.create_task(bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    main()
