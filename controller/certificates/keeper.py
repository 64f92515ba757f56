"""Keep the hub's certificates in a Secret, their CAs in a ConfigMap for the agents, and the server's in use.

Every replica does this: the first one creates the certificates, and the others read them. Renewal needs no restart.
"""

import threading
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
import structlog

from kubemend.common import aio
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from kubemend.controller.certificates import making, plan, stored
from kubemend.controller.certificates.plan import Periods
from kubemend.controller.certificates.stored import Stored

log = structlog.get_logger(__name__)

T = TypeVar("T")

SERVICE: Final = "kubemend-hub"
SECRET: Final = "kubemend-hub-tls"  # noqa: S105 - a name
"""Type Opaque: ``ca.crt``, ``ca.key``, ``tls.crt``, ``tls.key``, and temporarily ``next-ca.*`` and ``old-ca.crt``."""

CONFIG_MAP: Final = "kubemend-hub-ca"
"""Its key ``ca.crt`` holds one to three CAs in PEM: agents trust each of them."""

_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class KeeperOptions:
    """Location of the objects and names of the hub.

    ``extra_names`` are further DNS names or IP addresses. ``refresh_seconds`` is the interval at which the Secret is
    read: another replica's renewal takes effect here after at most that long.
    """

    namespace: str
    extra_names: Collection[str] = ()
    periods: Periods = field(default_factory=Periods)
    refresh_seconds: float = 60.0

    @property
    def names(self) -> frozenset[str]:
        """Return all names in the server's certificate: those of the Service, and the extra ones."""
        service = f"{SERVICE}.{self.namespace}"
        extra = map(making.normal, self.extra_names)
        return frozenset({SERVICE, service, f"{service}.svc", f"{service}.svc.cluster.local", *extra})


class Keeper:
    """Keep the certificates: ``ready``, then ``credentials`` for the server; ``run`` in the TaskGroup."""

    def __init__(self, api: kube.KubeClient, options: KeeperOptions, *, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._options = options
        self._clock = clock
        self._serving = Serving()

    async def ready(self) -> None:
        """Return when the certificates exist and are published. Retries indefinitely."""
        backoff = aio.Backoff(first=0.2, limit=10.0)
        while not await self._try_refresh():
            await backoff.wait()

    async def run(self) -> None:
        """Renew certificates before they expire, and adopt those that other replicas have renewed; never returns."""
        async for _ in aio.ticks(period=self._options.refresh_seconds):
            await self._try_refresh()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the server's credentials, which follow each renewal. Call it after ``ready``."""
        return self._serving.credentials()

    async def refresh(self) -> None:
        """Bring the Secret, the ConfigMap and the certificate in use up to date once. Raises KubeError."""
        current = await self._stored()
        # The bundle first: an agent must have a CA before it receives a certificate signed by it.
        await self._publish(current.bundle())
        self._serving.use(current)

    async def _try_refresh(self) -> bool:
        try:
            await self.refresh()
        except errors.KubeError as error:
            log.warning("certificates.not_kept", error=str(error))
            return False
        return True

    async def _stored(self) -> Stored:
        """Return the Secret's content after every due step has been taken and written."""
        return await _with_retries(self._try_stored)

    async def _try_stored(self) -> Stored:
        secret = await self._get(self._path("secrets", SECRET))
        found = Stored.from_secret((secret or {}).get("data") or {})
        wanted = stored.renewed(
            found, names=self._options.names, now=self._clock(), periods=self._options.periods, did=_log_step
        )
        if wanted is not found:
            body = {"kind": "Secret", "type": "Opaque", "data": wanted.to_secret()}
            await self._write("secrets", SECRET, body, old=secret)
        return wanted

    async def _publish(self, bundle: str) -> None:
        await _with_retries(lambda: self._try_publish(bundle))

    async def _try_publish(self, bundle: str) -> None:
        old = await self._get(self._path("configmaps", CONFIG_MAP))
        if old is None or (old.get("data") or {}).get(stored.CA) != bundle:
            body = {"kind": "ConfigMap", "data": {stored.CA: bundle}}
            await self._write("configmaps", CONFIG_MAP, body, old=old)

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            return await self._api.get(path)
        except errors.NotFoundError:
            return None

    async def _write(self, resource: str, name: str, body: dict[str, Any], *, old: dict[str, Any] | None) -> None:
        """Create an object, or replace the one that was read.

        Raises ConflictError if another replica wrote it first.
        """
        metadata = {"namespace": self._options.namespace, "name": name}
        if old is None:
            path = paths.collection(resource, namespace=self._options.namespace)
            await self._api.create(path, {"apiVersion": "v1", "metadata": metadata, **body})
        else:
            await self._api.update(self._path(resource, name), {**old, **body})

    def _path(self, resource: str, name: str) -> str:
        return f"{paths.collection(resource, namespace=self._options.namespace)}/{name}"


class Serving:
    """The certificate in use. gRPC requests it before each handshake, from its own threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_use = b""
        self._waiting: grpc.ServerCertificateConfiguration | None = None
        self._initial: grpc.ServerCertificateConfiguration | None = None

    def use(self, current: Stored) -> None:
        """Serve with this certificate from the next handshake on."""
        server = current.server
        if server is None or server.certificate_pem == self._in_use:
            return
        chain = [(server.key_pem, server.certificate_pem)]
        with self._lock:
            self._in_use = server.certificate_pem
            self._waiting = self._initial = grpc.ssl_server_certificate_configuration(chain)
        log.info("certificates.in_use", not_after=server.certificate.not_valid_after_utc.isoformat())

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow ``use``. Raises RuntimeError before the first certificate."""
        if self._initial is None:
            raise RuntimeError("no certificate yet")
        return grpc.dynamic_ssl_server_credentials(
            self._initial,
            self._changed,  # type: ignore[arg-type]  # None is "no change" (grpc.dynamic_ssl_server_credentials)
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            changed, self._waiting = self._waiting, None
            return changed


async def _with_retries(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Retry while other replicas write first. Raises ConflictError after the last try."""
    backoff = aio.Backoff(first=0.05)
    for _ in range(_TRIES - 1):
        try:
            return await attempt()
        except errors.ConflictError:
            await backoff.wait()
    return await attempt()


def _log_step(step: plan.Step) -> None:
    log.info("certificates.step", act=step.act.value, reason=step.reason)
