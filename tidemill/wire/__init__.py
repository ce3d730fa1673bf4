"""Messages between the processes, and one client for each process that answers them."""
