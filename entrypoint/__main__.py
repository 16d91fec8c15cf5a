"""`python -m entrypoint`: see `entrypoint.main`."""

import sys

from entrypoint.main import main

sys.exit(main())
