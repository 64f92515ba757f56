"""From findings to verdicts. Pure: a fold over facts, the catalog of codes, and who a fault concerns."""
