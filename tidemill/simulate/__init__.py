"""What a job would do, without running it: a discrete-event loop around the rules in `tidemill.policy`, and what follows from its results."""
