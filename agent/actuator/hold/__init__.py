"""Keep a started container from running: the cgroup freezer, and exec permission events (fanotify)."""
