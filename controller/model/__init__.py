"""The controller's values: gangs and their members, faults, and the events and effects of rounds."""
