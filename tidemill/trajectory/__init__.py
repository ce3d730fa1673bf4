"""What an execution sampled, as records and as training data. Pure."""
