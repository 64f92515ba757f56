"""What the API server tells: members, nodes, and who stands behind a gang."""
