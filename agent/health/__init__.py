"""From findings to verdicts. Pure: a fold over facts, the catalog of codes, and the attribution to containers."""
