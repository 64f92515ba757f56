"""Run the commands of the pages."""
