"""One worker for each gang: it collects faults and requests, decides, and runs the gang's rounds."""
