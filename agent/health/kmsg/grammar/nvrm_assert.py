"""Assertions of the NVIDIA driver. They do not contain a GPU's address, at most the driver's own number.

::

    NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ rs_client.c:1194
    NVRM nvAssertFailedNoLog: Assertion failed: NV_FALSE @ gpu_mgr.c:296
    NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Call timed out [NV_ERR_TIMEOUT] (0x00000065) returned from ...

The milder ``nvCheckFailed...: Check failed`` is not matched: the driver expects it occasionally.
"""

import re

_ASSERT = re.compile(
    r"NVRM:?\s+(?:GPU\d{1,3}\s+)?nvAssert\w{0,40}:\s+(?P<text>Assertion failed:\s*\S.*)", re.ASCII | re.DOTALL
)


def parse(text: str) -> str | None:
    """Return the failed assertion, or None for any other text."""
    match = _ASSERT.match(text)
    return match["text"].strip() if match is not None else None
