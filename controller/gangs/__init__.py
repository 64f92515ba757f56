"""Gangs from pods: members, options, budget, stragglers, and what their Jobs count. Pure."""
