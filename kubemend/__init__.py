"""kubemend: fast, device-aware, in-place recovery of GPU workloads on Kubernetes.

The packages lie at the top level of the repository; the links next to this file put them under one import name.
"""
