"""The CPU fallback's voice: one warning per operation that the card has no kernel for."""

from __future__ import annotations

import warnings


class FallbackWarning(UserWarning):
    """An operation on spyre tensors ran on the CPU."""


def warn(op_name: str) -> None:
    """Warn that an operation ran on the CPU; the runtime calls this once per operation."""
    warnings.warn(
        f"{op_name} has no kernel for spyre: its operands were copied to the host, it ran on the "
        "CPU, and the results were copied back. This is warned about once per operation; "
        "torch.spyre.fallback_stats() counts every call. What to do: see whether torch.compile "
        "puts it on the card, write it with operations that the card has, or move this part of the "
        "model to the CPU. TORCH_SPYRE_FALLBACK=error shows where it is called, "
        "TORCH_SPYRE_FALLBACK=quiet silences this, and so does "
        'warnings.filterwarnings("ignore", category=torch_spyre.ops.fallbacks.FallbackWarning).',
        FallbackWarning,
        stacklevel=2,
    )
