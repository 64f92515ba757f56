"""The managed JobSets at the API server: views, a work queue, writes, Events, metrics, and the placement of Jobs."""
