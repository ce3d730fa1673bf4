"""What an execution's work is worth."""
