"""The sandbox's own processes: Python's standard library only, so that a fork of it is small.

Imported as `jail` by the fork server (see `miner.executors.fork_server`), never by the miner.
"""
