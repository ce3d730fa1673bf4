"""The operator: kopf shell, pure plans, pods, and the waterlevel loop."""
