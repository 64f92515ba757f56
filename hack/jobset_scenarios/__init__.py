"""Scenarios of JobSets: YAML in ``tests/jobset/scenarios`` that says what happens to one, and what becomes of it.

A scenario plays against the decisions alone (in memory, by a clock of its own), or against the whole controller beside
the API stand-in or a real API server. Nobody else is there: the scenario is the Job controller, the garbage collector
and the user, so that what the JobSet's controller does is seen alone. ``reading`` says what a file may hold.
"""
