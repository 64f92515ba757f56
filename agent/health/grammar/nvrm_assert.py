"""Assertions of the NVIDIA driver. They name no GPU by its address, at most by the driver's own number.

::

    NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ rs_client.c:1194
    NVRM nvAssertFailedNoLog: Assertion failed: NV_FALSE @ gpu_mgr.c:296
    NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Call timed out [NV_ERR_TIMEOUT] (0x00000065) returned from ...

Its softer sister, ``nvCheckFailed...: Check failed``, is what the driver expects to happen now and then.
"""

import re

_ASSERT = re.compile(
    r"NVRM:?\s+(?:GPU\d{1,3}\s+)?nvAssert\w{0,40}:\s+(?P<text>Assertion failed:\s*\S.*)", re.ASCII | re.DOTALL
)


def parse(text: str) -> str | None:
    """Return what the driver says has failed, or None where it asserts nothing."""
    match = _ASSERT.match(text)
    return match["text"].strip() if match is not None else None
