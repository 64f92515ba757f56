"""A virtual machine like most GPU nodes: systemd as process 1, cgroup v2 alone, and AppArmor.

The machine that tests run on may have neither. QEMU emulates the processors, so it needs no nested virtualization and
takes about ten times as long. The guest's root is the host's, read-only and with a writable layer over it: what is
installed and built on the host runs there as well, at the same paths.
"""
