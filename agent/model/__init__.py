"""The value types of kubemend, all frozen. No I/O, no clock, no third-party imports."""
