"""`python -m tidemill_rollout.conductor`: the conductor of one job."""

import sys

from tidemill_rollout.conductor.main import main

if __name__ == "__main__":
    sys.exit(main())
