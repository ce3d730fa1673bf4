"""The policy server of a cell: vLLM with a token-in/token-out route of ours, verified weights, and control for the cell agent."""
