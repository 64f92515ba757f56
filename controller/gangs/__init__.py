"""Gangs from pods: members, options, budget, stragglers. Pure."""
