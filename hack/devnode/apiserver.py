"""Run a real etcd and kube-apiserver on loopback, in a directory.

No controller manager runs, so namespaces get no service account; that admission plugin is off by default.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hack.devnode import kubeconfig as kubeconfigs
from hack.devnode import kubernetes, loopback, processes

_START_SECONDS = 150.0
_STOP_SECONDS = 10.0


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Return why there is no real API server on this machine, or "" when there is one."""
    return kubernetes.missing("etcd", "kube-apiserver", environ=environ)


class KubeApiServer:
    """Run etcd and kube-apiserver as processes; an ``ApiServer``. ``stop`` stops only the API server.

    ``directory`` is for all their files; ``options`` are more flags for kube-apiserver. ``service_accounts`` has it
    give each pod a service account, which a controller manager must create. Raises processes.ProcessError when one of
    them does not start; its log has the reason.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kubeconfig: Path | None = None,
        options: Sequence[str] = (),
        service_accounts: bool = False,
    ) -> None:
        self._directory = directory
        self.kubeconfig = kubeconfig or directory / "kubeconfig"
        self._options = tuple(options)
        self._service_accounts = service_accounts
        self._token = secrets.token_urlsafe(16)
        self._etcd: processes.Child | None = None
        self._server: processes.Child | None = None
        self._etcd_port, self._etcd_peer_port = loopback.free_port(), loopback.free_port()
        self.port = loopback.free_port()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def start(self) -> None:
        """Start the missing processes, and return when the API server reports ready."""
        if self._etcd is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            await self._write_secrets()
            self._etcd = self._spawn("etcd", self._etcd_command())
        self._server = self._spawn("kube-apiserver", self._server_command())
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._ready()
        except TimeoutError as error:
            log = self._log("kube-apiserver")
            raise processes.ProcessError(
                f"kube-apiserver is not ready after {_START_SECONDS:g} s; see {log}"
            ) from error
        kubeconfigs.write(
            self.kubeconfig,
            server=f"https://127.0.0.1:{self.port}",
            token=self._token,
            certificate_authority=self.certificate,
        )

    async def stop(self) -> None:
        """Stop the API server; etcd keeps everything."""
        if self._server is not None:
            await self._server.stop(grace=_STOP_SECONDS)
            self._server = None

    def pause(self) -> None:
        """Have the API server hang (SIGSTOP): connections are accepted, and not answered."""
        if self._server is not None:
            self._server.pause()

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        if self._server is not None:
            self._server.signal(signal.SIGCONT)

    async def end(self) -> None:
        """Kill both: their data is discarded with them, so no orderly end is needed."""
        for child in (self._server, self._etcd):
            if child is not None:
                child.signal(signal.SIGKILL)
                await child.stop(grace=_STOP_SECONDS)
        self._server = self._etcd = None

    @property
    def service_account_key(self) -> Path:
        """Return the private key that signs service accounts' tokens: a controller manager needs it."""
        return self._directory / "service-accounts.key"

    @property
    def certificate(self) -> Path:
        """Return the certificate that kube-apiserver signs for itself; it is its own authority."""
        return self._directory / "certs" / "apiserver.crt"

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _spawn(self, name: str, arguments: list[str]) -> processes.Child:
        return processes.Child.start(
            [str(kubernetes.program(name)), *arguments],
            name=name,
            log=self._log(name),
            pid_file=self._directory / f"{name}.pid",
        )

    async def _write_secrets(self) -> None:
        tokens = self._directory / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
        self.service_account_key.touch(mode=0o600)
        self.service_account_key.write_bytes(await asyncio.to_thread(_private_key))

    def _etcd_command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._etcd_peer_port}"
        return [
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data lives as long as the test
            "--log-level=warn",
        ]

    def _server_command(self) -> list[str]:
        key = self.service_account_key
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--cert-dir={self._directory / 'certs'}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://devnode.invalid",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            *([] if self._service_accounts else ["--disable-admission-plugins=ServiceAccount"]),
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",  # nothing resolves the nodes' names
            "--shutdown-delay-duration=0s",
            *self._options,
        ]

    async def _ready(self) -> None:
        """Poll /readyz until it succeeds. There is no event to wait for: the port opens long before."""
        url = f"https://127.0.0.1:{self.port}/readyz"
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                self._check_alive()
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    context = ssl.create_default_context(cafile=self.certificate)
                    async with session.get(url, ssl=context) as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.1)

    def _check_alive(self) -> None:
        for child in (self._etcd, self._server):
            if child is not None and child.returncode is not None:
                raise processes.ProcessError(f"{child.name} ended ({child.returncode}); see {self._log(child.name)}")


def _private_key() -> bytes:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
