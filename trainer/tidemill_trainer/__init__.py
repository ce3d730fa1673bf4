"""The trainer: forward and backward of leased micro-steps, the core's optimizer and checkpoints, and the publication of weights."""
