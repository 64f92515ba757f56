"""Open gRPC channels to services on this node."""

import grpc.aio

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Kubelet's limit for a CRI message (pkg/kubelet/cri-client ``maxMsgSize``); a full node's listing needs it."""

_MAX_ANSWER = "grpc.max_receive_message_length"
_UNIX_SOCKET_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Reconnect quickly to a restarted service; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite its name, this is the time that a handshake may take.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # The kernel reports at once when the peer of a unix socket dies: pings would only cost wake-ups.
    ("grpc.keepalive_time_ms", 2**31 - 1),
    # Without this, two channels to one socket share their backoff.
    ("grpc.use_local_subchannel_pool", 1),
)


def unix_channel(path: str, *, max_answer: int = MAX_MESSAGE_BYTES) -> grpc.aio.Channel:
    """Open a channel to the unix socket at an absolute path. Call it inside a running event loop.

    A call whose answer exceeds ``max_answer`` bytes fails (RESOURCE_EXHAUSTED), and the answer is not read. Nothing is
    connected yet: a missing socket shows at the first call, and later calls find it once it appears.
    """
    return grpc.aio.insecure_channel(f"unix://{path}", options=(*_UNIX_SOCKET_OPTIONS, (_MAX_ANSWER, max_answer)))
