"""Start the programs: what they load, print and install."""
