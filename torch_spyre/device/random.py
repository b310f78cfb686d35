"""Random numbers: one Philox generator per device, the same numbers on every host."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device._utils import Device, device_index


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator with a random number and return that."""
    return _generator(None).seed()


def seed_all() -> None:
    """Seed all devices' generators with the same random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = DEVICE_NAME) -> torch.Tensor:
    """Return the state of a device's generator as a CPU byte tensor."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = DEVICE_NAME) -> None:
    """Set the state of a device's generator."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
