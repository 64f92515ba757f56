"""Restart a container or pod: request, admission, plan, execution, verification, recovery after a crash."""
