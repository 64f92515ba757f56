"""JobSets as the upstream API defines them (jobset.x-k8s.io/v1alpha2): decisions, pure."""
