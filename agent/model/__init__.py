"""The words of kubemend as frozen values. No I/O, no clock, no third-party imports."""
