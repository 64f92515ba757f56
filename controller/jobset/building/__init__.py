"""What a JobSet is made of: the bodies of its Jobs, Service and PersistentVolumeClaims, and how a Job goes on. Pure.

Fields, labels and annotations are upstream's.
"""

from controller.jobset.building.jobs import Mould, job
from controller.jobset.building.restarts import reset
from controller.jobset.building.resuming import resume
from controller.jobset.building.services import service
from controller.jobset.building.volumes import claims

__all__ = ["Mould", "claims", "job", "reset", "resume", "service"]
