"""Traces for an OpenTelemetry collector, from the job's events and trajectories: nothing is measured twice, and off they cost nothing."""
