"""`python -m entrypoint`: see `entrypoint.main`."""

import os
import sys

from entrypoint.main import main

status = main()
try:
    sys.stdout.flush()
except OSError:  # Python's own attempt would make it another status
    os._exit(status)
sys.exit(status)
