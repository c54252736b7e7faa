"""What we are compared with: each in an environment of its own, imported by nothing here but its own script."""
