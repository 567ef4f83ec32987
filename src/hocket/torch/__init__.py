"""hocket as a backend of ``torch.distributed``, for tensors in the memory of the CPU.

After ``import hocket.torch``, ``init_process_group("hocket")`` makes groups whose collectives hocket does. With
``HOCKET=1`` in the environment it does them in every group that has Gloo for the CPU, and no line of a program changes.
What hocket does not do goes to Gloo, or to the backend of the device that a tensor is on.
"""

from __future__ import annotations

from hocket.torch.entry import SUPPORTED as SUPPORTED
from hocket.torch.shared import empty as empty
from hocket.torch.shared import share_gradients as share_gradients
