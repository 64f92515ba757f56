"""The controller process: composition, leadership and traces."""
