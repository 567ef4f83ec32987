"""What ``import torch`` loads of hocket, by an entry point: next to nothing without ``HOCKET=1``."""

from __future__ import annotations

import os


def autoload() -> None:
    """Have hocket do the collectives of every process group that Gloo would do, where the environment asks for it."""
    if os.environ.get("HOCKET") == "1":
        import hocket.torch.entry  # noqa: F401
