"""The controller's values: gangs and their members, faults, what rounds do and learn."""
