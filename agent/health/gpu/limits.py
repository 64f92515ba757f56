"""The thresholds of the rules, in one place, each with the origin of its number."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """All times in seconds, temperatures in °C, shares from 0 to 1. Windows should be three polls long or more.

    A number without a source is kubemend's own choice.

    ``settle``: how long the evidence for the end of a fault must hold: longer than a link takes to retrain.
    ``report_interval``: the minimum time between two findings of the same fault when only its details change.

    ``corrected_errors`` in ``corrected_window``: DCGM (dcgm_gpu_hardware_limits.h) has 10 a minute as
    DCGM_LIMIT_MAX_SBE_RATE, and calls it a dummy value; no other number is published. Over ten minutes, so that one
    burst does not count.

    ``link_errors`` in ``link_window``: nvidia-resiliency-ext flags more than 15 in 30 windows of a minute.
    ``link_down``: how long a link that was up must be inactive: it retrains after a reset.

    ``fabric_wait``: how long the fabric manager may take until a GPU is in the fabric: up to minutes at the start of a
    node with NVSwitches.

    ``pcie_replays`` in ``pcie_window``: "8 replays per minute is the maximum recommended by RM"
    (dcgm_gpu_hardware_limits.h), over five minutes. The other counters of corrected errors on the link have no
    published number and get the same. No non-fatal or fatal error is allowed.
    ``pcie_begin``: how long the link must be narrow or slow while the GPU works.
    ``busy``: utilization in percent from which on the GPU counts as working. Below, link and clocks fall by design
    (nvidia-smi manual: current generation and width "may be reduced when the GPU is not in use").

    ``throttled_share`` of the polls in ``throttled_window``: gpud's hw-slowdown rule, 0.6 a minute over 10 minutes.
    ``throttled_over``: the share at or below which throttling is over.

    ``hot_begin``: how long the GPU must be at its limit: a peak is not a fault. ``hot_release``: how far below its
    limit the fault is over.

    ``slow_clock``: share of the maximal SM clock below which a GPU at ``slow_utilization`` percent counts as slow,
    where the driver gives no reason, in ``slow_share`` of such polls in ``slow_window``. A healthy GPU that nothing
    limits works at its maximum; half of it leaves room for clocks that an operator has locked.
    """

    settle: float = 60.0
    report_interval: float = 60.0
    corrected_errors: int = 100
    corrected_window: float = 600.0
    link_errors: int = 15
    link_window: float = 1800.0
    link_down: float = 60.0
    fabric_wait: float = 600.0
    pcie_replays: int = 40
    pcie_window: float = 300.0
    pcie_begin: float = 60.0
    busy: int = 50
    throttled_share: float = 0.6
    throttled_over: float = 0.2
    throttled_window: float = 600.0
    hot_begin: float = 30.0
    hot_release: int = 5
    slow_clock: float = 0.5
    slow_utilization: int = 90
    slow_share: float = 0.9
    slow_window: float = 300.0
