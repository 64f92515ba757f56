"""The agent's end of the controller's hub: it tells of members and faults, and takes part in rounds."""
