"""Process findings: record each, attribute it to containers, drop duplicates, and request restarts."""
