"""The agent programs, and how each is started."""
