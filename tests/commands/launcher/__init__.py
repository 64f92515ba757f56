"""Run the launcher (`kubemend run`) with programs."""
