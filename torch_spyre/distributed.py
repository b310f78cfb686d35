"""The process-group backend `spyreccl`: torch.distributed on Spyre tensors.

`torch.distributed.init_process_group("spyreccl")` is all that a program needs. The collectives are
C++ (`csrc/distributed`); Gloo, which PyTorch brings along, carries the bytes between processes.
"""

from __future__ import annotations

import datetime
from typing import Any, Self

from torch import distributed as dist

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME, DISTRIBUTED_BACKEND_NAME


class _LowerCase(str):
    """A name that stays as it is in upper case.

    PyTorch 2.13 keeps backends from outside under `name.upper()`. In a group of several backends it
    looks for the first of these keys among names in lower case, to know the group's default, and
    without one it warns when the group ends: "No backend of type 0 found". So the first key is ours
    as groups spell it.
    """

    __slots__ = ()

    def upper(self) -> Self:
        return self


def register() -> None:
    """Tell torch.distributed about the backend; part of `import torch`."""
    if dist.is_available() and dist.is_gloo_available():
        _C._distributed.set_make_gloo(_make_gloo)
        for name in (_LowerCase(DISTRIBUTED_BACKEND_NAME), DISTRIBUTED_BACKEND_NAME):
            dist.Backend.register_backend(name, _create, extended_api=True, devices=[DEVICE_NAME])


def _make_gloo(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    from torch._C._distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout)


def _create(options: Any, _backend_options: object) -> Any:
    """The backend of one process group, as `init_process_group` and `new_group` ask for it.

    It opens the card. Until one is open PyTorch takes "spyre" for card 0 in tensors without data,
    remembers that, and DTensor on any other card then finds its operands on two.
    """
    _C.init(_C.current_device())
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _C._distributed.make_backend(
        options.store, options.group_rank, options.group_id, ranks, options.timeout
    )
