"""One module for each wire a harness may speak. A wire is translated and nothing else."""
