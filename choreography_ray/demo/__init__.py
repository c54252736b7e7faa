"""The demo: a full-text index of the standard library of the Python that runs it."""
