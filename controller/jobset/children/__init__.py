"""Build a JobSet's Jobs, Service and PersistentVolumeClaims, and the writes that resume a Job. Pure.

Fields, labels and annotations are upstream's.
"""

from kubemend.controller.jobset.children.jobs import JobBuilder, job, resume, service
from kubemend.controller.jobset.children.volume_claims import claims

__all__ = ["JobBuilder", "claims", "job", "resume", "service"]
