"""Pictures of a job, made from its events: for real and simulated jobs alike."""
