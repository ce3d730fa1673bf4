"""A whole job on one machine: the same manifest, processes instead of pods."""
