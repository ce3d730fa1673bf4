"""What the processes say about themselves: logs for people who search, events for reports."""
