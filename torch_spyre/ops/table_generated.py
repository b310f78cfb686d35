"""The entries of numbers from nothing: random ones and ranges."""

from __future__ import annotations

from torch_spyre.ops.entries import Entry, Generated

GENERATED: tuple[Entry, ...] = (
    Generated("uniform_", ("uniform_",), by_value=("from", "to")),
    Generated("normal_", ("normal_",), by_value=("mean", "std")),
    Generated("log_normal_", ("log_normal_",), by_value=("mean", "std")),
    Generated("exponential_", ("exponential_",), by_value=("lambd",)),
    Generated("cauchy_", ("cauchy_",), by_value=("median", "sigma")),
    Generated("geometric_", ("geometric_",), by_value=("p",)),
    Generated("random_", ("random_", "random_.to", "random_.from"), by_value=("from", "to")),
    Generated("bernoulli_", ("bernoulli_.float", "bernoulli_.Tensor"), by_value=("p",)),
    Generated("bernoulli", ("bernoulli.out",)),
    Generated("arange", ("arange.start_out",), by_value=("start", "end", "step")),
)
