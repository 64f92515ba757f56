"""Forms of names and limits of lists. Where upstream's webhook has no limit, these are far above real use.

They keep each reconcile of a JobSet, and each expression of the admission policy (``daemonset/jobset/policy.yaml``),
short.
"""

import re
from typing import Final

REPLICATED_JOBS: Final = 200
JOBS: Final = 20_000
"""Jobs of all replicated Jobs together."""
RULES: Final = 100
"""Rules of the failure policy."""
PATTERNS_LENGTH: Final = 8192
"""Characters of all patterns of a failure policy together, one more for each: RE2 may take 0.2 ms for each of them."""
CLAIMS: Final = 50
"""Templates of all volumeClaimPolicies together."""
RESTARTED_JOBS: Final = 1024
"""Replicas of a replicated Job if a rule restarts single Jobs: MaxItems of ``jobRestarts`` in upstream's status."""
LABEL_LENGTH: Final = 63
"""Length of a label's value, and of names that appear in one."""
RULE_NAME_LENGTH: Final = 128

DNS_1035: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label that begins with a letter: names of Services, Jobs and pods' hosts (k8s.io/apimachinery, validation)."""
DNS_1035_HINT: Final = "choose names that make at most 63 lower-case letters, digits and '-', with a letter first"
DNS_1123: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Labels with dots between them: names of most objects."""
RULE_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")

REASONS: Final = frozenset(
    {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}
)
"""Reasons of a Job's Failed condition (batch/v1, ``JobReason...``)."""
