"""Read the mounts of containers' roots from containerd's snapshot service, which listens on the socket of its CRI."""

from typing import Final

import grpc
import grpc.aio

from kubemend.agent.restart import keep
from kubemend.common import grpcio
from kubemend.common.pb.snapshots.v1 import snapshots_pb2, snapshots_pb2_grpc

_NAMESPACE: Final = (("containerd-namespace", "k8s.io"),)
"""CRI's (containerd ``internal/cri/constants``)."""
_MAX_ANSWER: Final = 1 << 20  # an overlay has 128 lower directories at most


class SnapshotError(Exception):
    """The runtime does not show a snapshot; the text is the reason."""


class SnapshotClient:
    """Ask the runtime behind a socket. ``deadline`` in seconds is for one call."""

    def __init__(self, socket_path: str, *, deadline: float = 2.0) -> None:
        self._socket_path = socket_path
        self._deadline = deadline

    async def mounts(self, snapshot: keep.Snapshot) -> tuple[keep.Mount, ...]:
        """Return the mounts that make up a container's root. Raises SnapshotError."""
        request = snapshots_pb2.MountsRequest(snapshotter=snapshot.snapshotter, key=snapshot.key)
        async with grpcio.unix_channel(self._socket_path, max_answer=_MAX_ANSWER) as channel:
            stub: snapshots_pb2_grpc.SnapshotsAsyncStub = snapshots_pb2_grpc.SnapshotsStub(channel)
            try:
                answer = await stub.Mounts(request, timeout=self._deadline, metadata=_NAMESPACE)
            except grpc.aio.AioRpcError as error:
                raise SnapshotError(f"the runtime does not show it: {error.details()}") from error
        return tuple(keep.Mount(mount.type, tuple(mount.options)) for mount in answer.mounts)
