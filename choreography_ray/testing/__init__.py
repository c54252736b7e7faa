"""A job, or one of its steps, in the test's own process: no Ray, no MongoDB, in virtual time [S17]."""
