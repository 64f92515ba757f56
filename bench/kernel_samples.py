"""Collect lines as kernels and drivers of many versions have printed them, for fuzzing their readers.

Facts: the kernel's drivers/pci/pcie, drivers/net/ethernet/mellanox, mm/oom_kill.c, kernel/watchdog.c and hung_task.c,
and logs in public issues. Ids, addresses and names are made up.
"""

_POD = "0f6f7b0e_3a52_4c5e_9c58_0d8f1a2b3c4d"
_CONTAINER = "4f1c" * 16
_SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_POD}.slice"

SAMPLES = (
    "NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name=python3, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS "
    "GPCCLIENT_T1_0 faulted @ 0x7f16_3e000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    "NVRM: Xid (PCI:0000:41:00): 13, pid=4242, name=python3, Graphics SM Warp Exception on (GPC 2, TPC 0, SM 1): Out",
    "NVRM: Xid (PCI:0000:01:00 GPU-I:13 GPU-CI:00): 94, pid=99, name=ray::Worker [x], Contained: SM (0x1,0x2). RST: No",
    "NVRM: Xid (PCI:0000:00:08.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: Xid (0008:01:00): 46",
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
    "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x0)",
    "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link -1 (0x00000001 0x00000008)",
    "NVRM: GPU at PCI:0000:41:00: GPU-12345678-1234-1234-1234-123456789abc",
    "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Call timed out [NV_ERR_TIMEOUT] (0x00000065) returned from x",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 26006, Fatal, SOE HALT",
    "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
    "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:03:00.0",
    "pcieport 0000:40:01.1: AER: Correctable error message received from 0000:41:00.0",
    "nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=0300(Receiver ID)",
    "nvidia 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Data Link Layer, (Requester ID)",
    "nvidia 0000:03:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
    "tg3 0000:04:00.0: AER: aer_uncor_severity: 0x000ef030",
    "pcieport 0000:30:03.0: DPC: containment event, status:0x1f01 source:0x3400",
    "pcieport 0000:00:03.0: AER: device recovery successful",
    "mlx5_core 0000:5c:00.0: poll_health:471:(pid 0): device's health compromised - reached miss count",
    "mlx5_core 0000:08:00.0: print_health_info:425:(pid 912): Health issue observed, EQ error, severity(3) ERROR:",
    "mlx5_core 0000:61:00.0: print_health_info:520:(pid 0): synd 0x10: High temperature",
    "mlx5_core 0000:61:00.1: mlx5_health_try_recover:381:(pid 1): health recovery succeeded",
    "mlx5_core 0000:03:00.0: wait_func:964:(pid 9): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
    "mlx5_core 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms",
    "mlx5_core 0000:61:00.0: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1",
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
    "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged",
    f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-{_CONTAINER}.scope,mems_allowed=0,"
    f"oom_memcg={_SLICE},task_memcg={_SLICE}/cri-containerd-{_CONTAINER}.scope,task=python3,pid=4242,uid=0",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:8123kB, anon-rss:4kB, file-rss:0kB, UID:0",
    "Out of memory: Kill process 777 (tritonserver) score 973 or sacrifice child",
    "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
    "INFO: task kworker/u8:3:136986 blocked for more than 120 seconds.",
    'audit: type=1400 audit(1): apparmor="ALLOWED" operation="open" name="/proc/1/x" pid=4242',
)
