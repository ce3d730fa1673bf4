"""The `tidemill` command: one file a subcommand."""
