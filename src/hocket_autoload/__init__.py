"""What torch, vLLM and SGLang load of hocket, by entry points: next to nothing without ``HOCKET=1``."""

from __future__ import annotations

import os


def _asked() -> bool:
    return os.environ.get("HOCKET") == "1"


def autoload() -> None:
    """Have hocket do the collectives of every process group that Gloo would do, where the environment asks for it."""
    if _asked():
        import hocket.torch.entry  # noqa: F401


def vllm() -> None:
    """A plug-in of vLLM: hocket in the place of its kernels for tensor parallelism on CPUs."""
    if _asked():
        from hocket.torch.serving import take_over_vllm

        take_over_vllm()


def sglang() -> None:
    """The same of SGLang."""
    if _asked():
        from hocket.torch.serving import take_over_sglang

        take_over_sglang()
