"""Tidemill: elastic reinforcement learning of long-horizon LLM agents. This package is the language its processes share."""
