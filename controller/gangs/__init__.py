"""Gangs out of pods: members, wishes, budget, stragglers. Pure."""
