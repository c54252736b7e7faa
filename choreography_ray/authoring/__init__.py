"""What stands behind the classes that users derive from: their checks, contexts, results and cancellation."""
