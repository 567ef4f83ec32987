"""The thread that calls what was given to ``Handle.add_done_callback``, while there is something to call."""

from __future__ import annotations

import logging
import threading

from hocket import _native


def start() -> None:
    """Called by native code, for the first of them."""
    threading.Thread(target=_call_back, name="hocket callbacks", daemon=True).start()


def _call_back() -> None:
    while ready := _native.ready_callbacks():
        for callback in ready:
            try:
                callback()
            except BaseException:  # also what would end a thread: others have callbacks too
                logging.getLogger("hocket").exception("a callback of a call in the background raised")
