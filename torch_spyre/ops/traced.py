"""Operations that are traced (`ops.trace`) and have a kernel of their own registered.

Any operation without one reaches the same kernel through the dispatcher's fallback. These have it
because they are called often, and PyTorch would first make their result itself and then call the
`out=` form; or because PyTorch's kernel for all devices only refuses (`convolution_overrideable`).

Importing this has to stay cheap: it happens with `import torch`.
"""

from __future__ import annotations

_NAMES = (
    "sum",
    "sum.dim_IntList",
    "mean",
    "mean.dim",
    "prod",
    "prod.dim_int",
    "amax",
    "amin",
    "any",
    "any.dim",
    "any.dims",
    "all",
    "all.dim",
    "all.dims",
    "argmax",
    "argmin",
    "max",
    "max.dim",
    "min",
    "min.dim",
    "var.correction",
    "var_mean.correction",
    "std.correction",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_batch_norm",
    "embedding",
    "embedding_dense_backward",
    "index_select",
    "index.Tensor",
    "gather",
    "scatter.src",
    "scatter.value",
    "scatter_add",
    "cat",
    "sort",
    "sort.stable",
    "topk",
    "cumsum",
    "cumprod",
    "tril",
    "triu",
    "roll",
    "flip",
    "constant_pad_nd",
    "nll_loss_forward",
    "nll_loss_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "max_pool2d_with_indices",
    "avg_pool2d",
    "native_dropout",
    "native_dropout_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)

NAMES = tuple(f"aten::{name}" for name in _NAMES)
