"""Exclusive placement: each Job has a topology domain (a rack, a node pool) for itself. Pure.

Upstream uses a webhook for pods. Here a scheduling gate holds the pods of such a Job back. ``choosing`` picks a domain
for the Job; then its pods get it as their node selector, and the gate is removed (``exclusive``).
"""
