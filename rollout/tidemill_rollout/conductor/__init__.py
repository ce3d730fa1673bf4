"""The conductor: one process per job that dispatches executions, keeps what they sampled, hands out micro-steps and grants roles."""
