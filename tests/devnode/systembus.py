"""Run a private system bus with a stand-in for logind, on which a dev node's kubelet learns of the machine's shutdown.

The bus is Debian's own dbus-daemon, without the machine's configuration; the stand-in is ``tests.devnode.logind``.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

from hack.devnode import packages, processes, sockets
from tests.devnode import logind

INHIBIT_DELAY_MAX: Final = 600.0
"""Seconds. Longer than any grace period that kubelet asks for: it writes logind's configuration where this is too short
(``OverrideInhibitDelay``), and /etc is the machine's own.
"""

_KUBELET: Final = "kubelet"
_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.02
_STOP_SECONDS: Final = 5.0
_CONFIG: Final = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
"""


class SystemBus:
    """Run the bus and logind's stand-in, with their files in a directory. Bound to no event loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket = directory / "dbus.sock"
        self._children: list[processes.Child] = []

    @property
    def address(self) -> str:
        """Return the bus's address."""
        return f"unix:path={self._socket}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variable by which a program finds the bus."""
        return {"DBUS_SYSTEM_BUS_ADDRESS": self.address}

    async def start(self) -> None:
        """Start both; logind answers when this returns. Raises packages.PackagesError and processes.ProcessError."""
        daemon = await asyncio.to_thread(packages.ensure_dbus_daemon)
        try:
            await self._start_bus(daemon)
            stand_in = [sys.executable, "-m", "tests.devnode.logind"]
            self._started(
                [*stand_in, f"--bus={self.address}", f"--inhibit-delay-max={INHIBIT_DELAY_MAX:g}"],
                name="logind",
                environment=processes.source_environment(),
            )
            await self._until(lambda _: True, what="logind did not answer")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End both."""
        while self._children:
            await self._children.pop().stop(grace=_STOP_SECONDS)

    async def until_kubelet_delays(self) -> None:
        """Wait until kubelet holds its delay lock, with which it takes part in a shutdown. Raises ProcessError."""
        await self._until(lambda holders: _KUBELET in holders, what="kubelet has taken no delay lock")

    async def until_kubelet_releases(self) -> None:
        """Wait until kubelet has released its lock: it has ended all pods, or their time is up. Raises ProcessError."""
        await self._until(lambda holders: _KUBELET not in holders, what="kubelet holds its delay lock")

    async def shut_down(self) -> None:
        """Begin a shutdown, as ``systemctl poweroff`` does. Raises processes.ProcessError."""
        await self._call(logind.LOGIND, logind.LOGIND_PATH, logind.MANAGER, "PowerOff", "b", [False])

    async def cancel_shutdown(self) -> None:
        """Cancel it, as ``systemctl cancel`` does. Raises processes.ProcessError."""
        await self._call(logind.SYSTEMD, logind.SYSTEMD_PATH, logind.JOBS, "ClearJobs")

    async def _start_bus(self, daemon: packages.DbusDaemon) -> None:
        config, notify = self._directory / "dbus.conf", self._directory / "notify.sock"
        config.write_text(_CONFIG.format(socket=escape(str(self._socket))))
        with sockets.notify_socket(notify) as notified:
            child = self._started(
                [str(daemon.program), f"--config-file={config}", "--nofork", "--nopidfile"],
                name="dbus",
                environment={
                    "PATH": os.environ["PATH"],
                    "LD_LIBRARY_PATH": daemon.library_path,
                    "NOTIFY_SOCKET": str(notify),
                },
            )
            ready = asyncio.create_task(sockets.until_ready(notified), name="bus-ready")
            ended = asyncio.create_task(child.wait(timeout=_SECONDS), name="bus-ended")
            try:
                await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    raise processes.ProcessError(f"{child.name} did not start; see {self._directory}/dbus.log")
            finally:
                for task in (ready, ended):
                    task.cancel()
                await asyncio.gather(ready, ended, return_exceptions=True)

    def _started(self, command: Sequence[str], *, name: str, environment: Mapping[str, str]) -> processes.Child:
        child = processes.Child.start(
            command,
            name=name,
            log=self._directory / f"{name}.log",
            pid_file=self._directory / f"{name}.pid",
            environment=environment,
        )
        self._children.append(child)
        return child

    async def _until(self, holds: Callable[[set[str]], bool], *, what: str) -> None:
        """Poll who holds locks until it holds."""
        problem = ""
        try:
            async with asyncio.timeout(_SECONDS):
                while True:
                    try:
                        (locks,) = await self._call(logind.LOGIND, logind.LOGIND_PATH, logind.MANAGER, "ListInhibitors")
                    except processes.ProcessError as error:  # logind's name has no owner yet
                        problem = f" ({error})"
                    else:
                        problem = f" (locks: {locks})"
                        if holds({who for _, who, *_ in locks}):
                            return
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            log = self._directory / "logind.log"
            raise processes.ProcessError(f"{what} within {_SECONDS:g} s{problem}; see {log}") from error

    async def _call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", body: Sequence[Any] = ()
    ) -> list[Any]:
        """Call a method on a connection of its own, and return the values of the answer."""
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
        )
        bus = await MessageBus(bus_address=self.address).connect()
        try:
            answer = await bus.call(message)
        finally:
            bus.disconnect()
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
        if answer.message_type is MessageType.ERROR:
            raise processes.ProcessError(f"{member} failed: {answer.error_name} {answer.body}")
        values: list[Any] = answer.body
        return values
