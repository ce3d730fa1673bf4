"""The cell agent: one process that owns a cell's role, runs its engine and its trainer, and switches between them."""
