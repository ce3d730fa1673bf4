"""`python -m tidemill_trainer`."""

import os

# Before torch is loaded. By default waiting OpenMP threads spin; where two cells share cores a pass of 7 s then takes 30 to 80 s.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tidemill_trainer.main import main

main()
