"""PyTorch on the IBM Spyre accelerator, with a software card behind it.

With the package installed, `import torch` is enough: PyTorch finds the entry point `_autoload`
and from then on has a device called ``spyre`` and a module ``torch.spyre``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import PurePath

__all__ = ["__version__"]
__version__ = "0.1.0"

_loaded = False


def _autoload() -> None:
    """Make the device known to PyTorch; called by `import torch`, runs once.

    Opens no card and imports no compiler. When the extension can't be loaded (it was built for
    another PyTorch, say) `import torch` goes on without the device, with one warning.
    """
    global _loaded
    if _loaded:
        return
    _loaded = True
    try:
        from torch_spyre import _register
    except ImportError as error:
        warnings.warn(
            f"torch_spyre is installed but its extension could not be loaded, so there is no "
            f"'spyre' device: {error}. Rebuild it for this PyTorch with "
            f"`pip install --no-build-isolation --force-reinstall torch-spyre`.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _register.register()


def __getattr__(name: str) -> object:
    if name == "require_layout":
        from torch_spyre._inductor.fx.custom_ops import require_layout

        return require_layout
    if name in ("coarse_tile", "declare_tensor_dim", "name_tensor_dims", "spyre_hint"):
        from torch_spyre import hints

        return getattr(hints, name)
    if name == "explain":
        from torch_spyre.tools.explain.collect import explain

        return explain
    if name in ("CheckpointError", "empty_weights", "load_model", "load_safetensors"):
        from torch_spyre import loading

        return getattr(loading, name)
    raise AttributeError(f"module 'torch_spyre' has no attribute {name!r}")


def _only_reads_files() -> bool:
    """Is this process the command that analyses traces? It should not wait for PyTorch to load."""
    program, argument = [*sys.orig_argv[1:], "", ""][:2]
    is_module = (program, argument) == ("-m", "torch_spyre.tools.trace")
    return is_module or (PurePath(program).name, argument) == ("spyre", "trace")


# Last, because PyTorch calls `_autoload` while it is imported: `import torch_spyre` by itself gives
# the device too, and the extension finds PyTorch's libraries loaded.
if not _only_reads_files():
    import torch  # noqa: F401
