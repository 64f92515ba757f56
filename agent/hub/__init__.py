"""Connect the agent to the controller's hub: report members and faults, and take part in rounds."""
