"""Rules for network adapters, their links and their RDMA counters. Pure."""
