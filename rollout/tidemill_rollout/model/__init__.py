"""Where the initial weights come from: `spec.model.source` becomes a Hugging Face folder that engine, trainer and gateway load."""

from tidemill_rollout.model.folder import ModelError, check
from tidemill_rollout.model.source import default_cache, resolve

__all__ = ["ModelError", "check", "default_cache", "resolve"]
