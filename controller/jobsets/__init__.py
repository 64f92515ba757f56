"""JobSets of ours against the API server: views, a work queue, writes, events, metrics, and the nodes that Jobs get."""
