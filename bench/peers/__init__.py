"""Compare kubemend with other projects that restart containers and report faults: in one run, on one real cluster."""
