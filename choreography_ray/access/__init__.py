"""What can be read of a job and asked of it, by whatever way its actor is reached: knows no Ray."""
