"""JobSets as the upstream API describes them (jobset.x-k8s.io/v1alpha2): decisions, pure."""
