"""Serves an ASGI application for `hosting.LocalApp`: `PYTHON serve_app.py FOLDER MODULE:NAME PORT`.

Run by a Python that has the application's packages, and perhaps none of ours: it imports no other
module of this project. It ends with the process that started it.
"""

import ctypes
import signal
import sys


def main() -> None:
    """Serve until asked to stop."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    import uvicorn

    folder, app, port = sys.argv[1:]
    uvicorn.run(app, app_dir=folder, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
