"""What tests and benchmarks share, and no user needs."""
