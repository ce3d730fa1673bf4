"""What every test runs under: no model hub, no display, and property tests that time cannot fail."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm otherwise asks the network for a price list at import
os.environ["MPLBACKEND"] = "Agg"

settings.register_profile("tidemill", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tidemill")
