"""The function behind `torch.compile` for Spyre graphs, in both spellings.

`torch.compile(model)` comes here through the patch of Inductor's entry (see `_patches.py`) when an
input or a node of the graph is on Spyre; `torch.compile(model, backend="spyre")` directly.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch._guards import Guard, TracingContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME

from .weights import is_of_module, lay_out_weights, local

# What Inductor must not do for this device. The first entries keep loops as the model wrote them;
# the others turn off what our passes do better or what does not know device layouts.
INDUCTOR_CONFIG: dict[str, Any] = {
    "allow_buffer_reuse": False,
    "benchmark_kernel": False,
    "comprehensive_padding": False,
    "cpp_wrapper": False,
    # Random numbers come from the device's generator, as in eager mode.
    "fallback_random": True,
    "layout_optimization": False,
    "loop_ordering_after_fusion": False,
    "max_autotune": False,
    "mtia.disable_welford_reduction": True,
    # What is read twice is computed once; the rest stays in one body, up to a length.
    "realize_acc_reads_threshold": 64,
    "realize_opcount_threshold": 64,
    "realize_reads_threshold": 0,
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "split_reductions": False,
    "unroll_reductions_threshold": 1,
}


def is_spyre_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Is a tensor of the graph on Spyre?"""
    if any(isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME for x in inputs):
        return True
    for node in gm.graph.nodes:
        device = node.kwargs.get("device")
        if device is not None and torch.device(device).type == DEVICE_NAME:
            return True
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME:
            return True
    return False


def compile_graph(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    config_patches: dict[str, Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for Spyre.

    `mode` and `options` arrive here from `torch.compile(backend="spyre")` only; in the other
    spelling PyTorch has made patches of Inductor's configuration of them already.
    """
    from torch_spyre.device import ffdc

    from . import observe

    number = next(observe.numbers)
    with observe.compiling(number, gm), ffdc.reporting("compile", graph=gm):
        chosen = torch._TorchCompileInductorWrapper(mode, options, None).config
        patches = {**chosen, **(config_patches or {}), **INDUCTOR_CONFIG}
        return _compile(gm, inputs, number, patches, kwargs)


def _compile(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    number: int,
    patches: dict[str, Any],
    kwargs: dict[str, Any],
) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from . import config
    from .changes import expect_changes
    from .externs import calling_what_has_no_loop
    from .fx.functions import use_own_functions
    from .growth import keep_windows
    from .heads import separate_heads
    from .hints import digest, following_names
    from .recompiles import remember
    from .registration import register

    register()
    expect_changes(gm)
    keep_windows(gm)
    lay_out_weights(gm, inputs)
    heads = separate_heads(gm, inputs)
    gm, examples = heads.graph, heads.examples(inputs)
    inputs = [*inputs, *heads.copies(inputs)]
    use_own_functions(gm)
    keys = [
        None if is_dynamic else _layout_key(value)
        for value, is_dynamic in zip(inputs, _dynamic_inputs(gm), strict=True)
    ]
    _guard_layouts(gm, inputs, keys)
    layouts = tuple(chain.from_iterable(map(_keys_of_parts, inputs, keys)))
    with config.patch(input_layouts=layouts, hints=digest(gm)):
        compiled = compile_fx(
            gm,
            examples,
            inner_compile=_observed(
                following_names(calling_what_has_no_loop(_plain_errors(compile_fx_inner))), number
            ),
            config_patches={**patches, **_cacheable_functions(), **_joint_graph_passes(patches)},
            **kwargs,
        )
    assert callable(compiled)
    remember(gm, inputs)
    return heads.supplied(compiled)


def _observed(compile_inner: Callable[..., Any], number: int) -> Callable[..., Any]:
    """A backward graph may be compiled by itself, when it is first needed."""
    from torch_spyre.device import ffdc

    from . import observe

    @functools.wraps(compile_inner)
    def compile_observed(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with observe.compiling(number), ffdc.reporting("compile", graph=gm):
            for observer in observe.current():
                observer.begin_graph(number, bool(kwargs.get("is_backward")))
            code = compile_inner(gm, *args, **kwargs)
            for observer in observe.current():
                observer.end_graph(code)
            return code

    return compile_observed


def _plain_errors(compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    """Past its caches Inductor wraps every error; ours say all there is to say."""
    from torch._inductor.exc import InductorError

    from .errors import Unsupported

    @functools.wraps(compile_inner)
    def compile_plainly(*args: Any, **kwargs: Any) -> Any:
        try:
            return compile_inner(*args, **kwargs)
        except InductorError as error:
            if isinstance(error.inner_exception, Unsupported):
                raise error.inner_exception from None
            raise

    return compile_plainly


def _joint_graph_passes(patches: dict[str, Any]) -> dict[str, Any]:
    """Ours come after those of a user."""
    from torch._inductor import config as inductor_config
    from torch._inductor.custom_graph_pass import get_custom_graph_passes

    from .registration import SpyreJointGraphPasses

    name = "joint_custom_pre_pass"
    others = get_custom_graph_passes(patches.get(name, getattr(inductor_config, name)))
    return {name: [*others, SpyreJointGraphPasses()]}


def _cacheable_functions() -> dict[str, dict[str, str]]:
    """Our functions in Dynamo graphs: the AOTAutograd cache passes over graphs with unknown ones.

    What they do may change with the sources, so their hash goes into the key.
    """
    from torch._inductor import config as inductor_config

    from .fx.functions import OWN
    from .registration import source_hash

    known = inductor_config.unsafe_marked_cacheable_functions
    key = source_hash().hex()
    own = {f"{function.__module__}.{function.__name__}": key for function in OWN.values()}
    return {"unsafe_marked_cacheable_functions": {**known, **own}}


def _dynamic_inputs(gm: torch.fx.GraphModule) -> list[bool]:
    """Which inputs have sizes that may change: they are copied to buckets, in any layout."""
    found = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("example_value")
            shape = value.shape if isinstance(value, torch.Tensor) else ()
            found.append(any(isinstance(n, torch.SymInt) for n in shape))
    return found


LayoutKey = tuple[tuple[int, ...], tuple[int, ...]]


def _layout_key(value: Any) -> LayoutKey | None:
    """Device size and stride map of a tensor's storage; None for what is not on a card."""
    if not isinstance(value, torch.Tensor) or value.device.type != DEVICE_NAME:
        return None
    value = local(value)
    if isinstance(value, torch._subclasses.FakeTensor) or is_traceable_wrapper_subclass(value):
        return None
    layout = _C.get_spyre_tensor_layout(value)
    return tuple(layout.device_size), tuple(layout.stride_map)


def _keys_of_parts(value: Any, key: LayoutKey | None) -> Iterator[LayoutKey | None]:
    """A key for each input that AOTAutograd makes of one: a distributed tensor comes in parts."""
    if not is_traceable_wrapper_subclass(value):
        yield key
        return
    for name in value.__tensor_flatten__()[0]:
        part = getattr(value, name)
        yield from _keys_of_parts(part, _layout_key(part))


def _guard_layouts(gm: torch.fx.GraphModule, inputs: Sequence[Any], keys: Sequence[Any]) -> None:
    """Another layout of an input means another compile: Dynamo does not see layouts by itself.

    Inputs are guarded one by one; the parameters and buffers of a module, of which there are
    hundreds, by one check of all of them.
    """
    if TracingContext.try_get() is None:
        return
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    weights: list[tuple[weakref.ref[torch.Tensor], LayoutKey]] = []
    last_source = None
    for node, value, key in zip(placeholders, inputs, keys, strict=True):
        argument = node.meta.get("grapharg")
        if key is None or argument is None:
            continue
        if is_of_module(node, value):
            weights.append((weakref.ref(local(value)), key))
            last_source = argument.source
        else:
            text = f"{argument.source.name} has another device layout, or another size"
            _guard(argument.source, functools.partial(_has_layout, key), text)
    if last_source is not None:
        check = functools.partial(_have_layouts, tuple(weights))
        _guard(last_source, check, "device layouts of the module's tensors")


def _guard(source: Any, check: Callable[[Any], bool], text: str) -> None:
    def create(builder: Any, guard: Any) -> None:
        builder.get_guard_manager(guard).add_lambda_guard(check, [text], None)

    from torch._dynamo.guards import install_guard

    install_guard(Guard(source, create))


def _has_layout(key: LayoutKey, value: Any) -> bool:
    return _layout_key(value) == key


def _have_layouts(weights: Sequence[tuple[Any, LayoutKey]], _: Any) -> bool:
    return all((value := ref()) is None or _layout_key(value) == key for ref, key in weights)
