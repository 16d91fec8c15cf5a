"""Imported first by the fork server of tests.processes: nothing that it imports goes away."""

import gc

gc.disable()
