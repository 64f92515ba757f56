"""The controller's Informers: members and nodes."""
