"""What the agents work on: tasks in Harbor's layout."""
