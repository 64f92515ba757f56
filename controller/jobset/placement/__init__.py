"""Exclusive placement: each Job has a topology domain (a rack, a node pool) for itself. Pure.

Upstream does it with a webhook for pods. Here a scheduling gate holds the pods of such a Job back; ``choosing`` picks a
domain for the Job, and with that as their node selector its pods are let go (``marks``).
"""
