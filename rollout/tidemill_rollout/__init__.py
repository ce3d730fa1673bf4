"""Rollout: the gateway, the engine, the conductor, harnesses, sandboxes and tasks."""
