"""Hints for coarse tiling: names for dimensions, and into how many tiles one of them is cut.

`coarse_tile` does both for a function at once, by numbers of dimensions.

A name is a promise about dataflow: the compiler follows it from the tensor that has it through
views, matmuls and reductions, and loops over tiles of it where a scope asks for that.

    import torch_spyre

    @torch.compile
    def project(x, w):                                  # x: [1024, 512]
        torch_spyre.declare_tensor_dim("M", 1024)
        torch_spyre.name_tensor_dims(x, ["M", "K"])
        with torch_spyre.spyre_hint(num_tiles_per_dim={"M": 8}):
            return torch.relu(x @ w)                    # eight times 128 rows

In eager mode, and for tensors elsewhere, hints do nothing but check their arguments.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch

# Imported here, so that Dynamo meets it imported.
import torch.fx.traceback as _traceback

from torch_spyre._inductor.fx import custom_ops as _custom_ops  # noqa: F401  spyre::name_dims
from torch_spyre.constants import DEVICE_NAME

__all__ = ["coarse_tile", "declare_tensor_dim", "name_tensor_dims", "spyre_hint"]

# The key of `node.meta["custom"]` under which nodes of a graph keep the scopes around them: tuples
# of scope number, dimension, tiles and named dimensions, outermost first.
ANNOTATION = "spyre_hints"

# Names that `coarse_tile` gives begin so. They may stand for several sizes: each of a call.
GENERATED = "coarse_tile "

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

_declared: dict[str, int] = {}
_numbers = itertools.count()


def declare_tensor_dim(name: str, size: int) -> None:
    """Say how long the dimension of a name is. A later declaration of the name replaces it.

    Tensors whose dimension of that name has another size are refused from then on, and so are tile
    counts that do not divide it.

        declare_tensor_dim("M", 1024)
    """
    _declare(name, int(size) if isinstance(size, int) else size)


def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str | None]) -> None:
    """Name the dimensions of a tensor, in order; None leaves one without a name.

    >>> name_tensor_dims(x, ["M", "K"])
    >>> name_tensor_dims(attention_mask, [None, None, "Q", "K"])
    """
    names = tuple(names)
    sizes = _sizes_of(names, tensor.dim())
    for dim, size in enumerate(sizes):
        if size is not None and tensor.shape[dim] != size:
            _refuse_size(str(names[dim]), size, dim, int(tensor.shape[dim]))
    if torch.compiler.is_compiling() and tensor.device.type == DEVICE_NAME:
        torch.ops.spyre.name_dims(tensor, [name or "" for name in names])


def spyre_hint(
    num_tiles_per_dim: Mapping[str, int] | None = None,
    named_dims: Sequence[str | None] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """A scope whose operations are computed tile by tile along a named dimension.

    `num_tiles_per_dim` has one entry; scopes within scopes tile further dimensions, the outer one
    being the outer loop. `named_dims` names the results of operations in the scope that have no
    inputs to take names from, such as `torch.zeros`.

        with spyre_hint(num_tiles_per_dim={"M": 8}):
            with spyre_hint(num_tiles_per_dim={"N": 4}):
                y = x @ w

        with spyre_hint({"M": 8}, named_dims=["M", "N"]):
            y = torch.zeros(1024, 512, device="spyre") + bias
    """
    tiles = None if num_tiles_per_dim is None else dict(num_tiles_per_dim)
    names = None if named_dims is None else tuple(named_dims)
    scopes = _scopes_within(tiles, names)
    if not torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return _traceback.annotate({ANNOTATION: scopes})


def coarse_tile(
    function: Callable[..., R] | None = None,
    *,
    tiles: Mapping[int, int],
    argument: int | str = 0,
) -> Any:
    """The function, computed tile by tile along dimensions of one of its tensor arguments.

    `tiles` maps dimensions of the argument to the number of tiles, the outermost loop first. The
    compiler follows each dimension through the function: operations that have it are put into a
    counted loop over its tiles; where it is summed over, each tile adds to an accumulator. What
    passes between operations in a loop is as large as one tile, and can stay in the scratchpads.

        def mlp(x, up, down):                       # x: [8192, 4096]
            return functional.gelu(x @ up) @ down

        tiled = torch.compile(coarse_tile(mlp, tiles={0: 16}))     # 16 times 512 rows

        @coarse_tile(tiles={0: 4, 1: 8}, argument="w")
        def project(x, w):                          # w: [k, n]
            return x @ w                            # 4 parts of k, and in each of them 8 of n

    The argument is given by its position or its name. In eager mode, and for tensors elsewhere,
    the function is as it was.
    """
    if function is None:
        return functools.partial(coarse_tile, tiles=tiles, argument=argument)
    # As text, for Dynamo takes numbers that differ between functions for sizes that change.
    counts = _checked_tiles(tuple(tiles.items()))
    name = getattr(function, "__name__", type(function).__name__)
    label = f"{GENERATED}{name}({argument})"
    position, keyword = _parameter(function, argument)

    @functools.wraps(function, updated=())
    def tiled(*args: Any, **kwargs: Any) -> R:
        tensor = kwargs.get(keyword, args[position] if position < len(args) else None)
        if not isinstance(tensor, torch.Tensor):
            _refuse_argument(argument, name)
        names, scopes = _names_and_scopes(counts, tensor.dim(), label)
        name_tensor_dims(tensor, names)
        return _within(scopes, function, args, kwargs)

    if not torch.compiler.is_compiling():
        # Dynamo compiles by code object, each of them so often and no more: one for each function.
        tiled.__code__ = tiled.__code__.replace(co_name=name)  # type: ignore[attr-defined]
    return tiled


def _within(scopes: Sequence[Any], function: Callable[..., R], args: Any, kwargs: Any) -> R:
    """Call a function in scopes, the first one outermost."""
    if not scopes:
        return function(*args, **kwargs)
    name, count = scopes[0]
    with spyre_hint({name: count}):
        return _within(scopes[1:], function, args, kwargs)


def declared_sizes() -> Mapping[str, int]:
    """The declarations that hold now."""
    return _declared


# ---- Checks -------------------------------------------------------------------------------------


def _at_trace_time(function: F) -> F:
    """Let Dynamo call the function as it is: it sees declarations, and its errors arrive whole."""
    torch.compiler.assume_constant_result(function)
    return function


@_at_trace_time
def _declare(name: str, size: int) -> None:
    _check_name(name)
    if not isinstance(size, int) or size < 1:
        _refuse(
            f"declare_tensor_dim({name!r}, {size!r})",
            "the size of a dimension is a positive integer",
            f"declare_tensor_dim({name!r}, 1024)",
        )
    _declared[name] = size


@_at_trace_time
def _sizes_of(names: tuple[str | None, ...], rank: int) -> tuple[int | None, ...]:
    """The declared sizes of dimensions that a tensor of this rank is to have."""
    if len(names) != rank:
        _refuse(
            f"name_tensor_dims(…, {list(names)})",
            f"{len(names)} names for a tensor of {rank} dimensions",
            "give one name per dimension, None for those that need none",
        )
    _check_names(names)
    return tuple(None if name is None else _declared.get(name) for name in names)


@_at_trace_time
def _scopes_within(
    tiles: dict[str, int] | None, names: tuple[str | None, ...] | None
) -> tuple[Any, ...]:
    """The scopes around this place with a new one in them, checked."""
    if tiles is None and names is None:
        _refuse(
            "spyre_hint()",
            "it says nothing",
            'spyre_hint(num_tiles_per_dim={"M": 8}), or named_dims=[…]',
        )
    if tiles is not None and len(tiles) != 1:
        nested = ", ".join(f"spyre_hint({{{name!r}: {n}}})" for name, n in tiles.items())
        _refuse(
            f"spyre_hint(num_tiles_per_dim={tiles})",
            f"a scope tiles one dimension, this one names {len(tiles)}",
            f"nest the scopes, outermost loop first: with {nested}:"
            if tiles
            else 'name the dimension: spyre_hint(num_tiles_per_dim={"M": 8})',
        )
    _check_names(names or ())
    dim, count = next(iter(tiles.items())) if tiles else ("", 1)
    if tiles:
        _check_name(dim)
        _check_count(dim, count)
    custom = _traceback.current_meta.get("custom", {})
    return (*custom.get(ANNOTATION, ()), (next(_numbers), dim, count, names or ()))


@_at_trace_time
def _checked_tiles(tiles: tuple[tuple[int, int], ...]) -> str:
    call = f"coarse_tile(…, tiles={dict(tiles)})"
    if not tiles:
        _refuse(call, "it says nothing", "coarse_tile(function, tiles={0: 8})")
    for dim, count in tiles:
        if not isinstance(dim, int) or not isinstance(count, int) or count < 1:
            _refuse(
                call,
                "tiles are given as the number of a dimension and a positive number of tiles",
                "coarse_tile(function, tiles={0: 8})",
            )
    return repr(tiles)


@_at_trace_time
def _parameter(function: Callable[..., Any], argument: int | str) -> tuple[int, str]:
    """Position and name of an argument; of a module those of its `forward`."""
    try:
        names = list(inspect.signature(getattr(function, "forward", function)).parameters)
    except ValueError:  # a builtin does not tell
        names = []
    if isinstance(argument, int):
        return argument, names[argument] if argument < len(names) else ""
    return names.index(argument) if argument in names else len(names), argument


@_at_trace_time
def _refuse_argument(argument: int | str, name: str) -> NoReturn:
    _refuse(
        f"coarse_tile({name}, …, argument={argument!r})",
        f"{name} was called without a tensor as this argument",
        "argument=0, or the position or name of the tensor whose dimensions `tiles` counts",
    )


@_at_trace_time
def _names_and_scopes(
    counts: str, rank: int, label: str
) -> tuple[tuple[str | None, ...], tuple[tuple[str, int], ...]]:
    """Names for the dimensions of a tensor, and tiles for those that have one."""
    names: list[str | None] = [None] * rank
    scopes = []
    for dim, count in ast.literal_eval(counts):
        if not -rank <= dim < rank:
            _refuse(
                f"{label}, tiles={{{dim}: {count}}}",
                f"the tensor has {rank} dimensions",
                f"a dimension from {-rank} to {rank - 1}",
            )
        name = names[dim] = f"{label}.{dim % rank}"
        scopes.append((name, count))
    return tuple(names), tuple(scopes)


def _check_count(name: str, count: int) -> None:
    call = f"spyre_hint(num_tiles_per_dim={{{name!r}: {count!r}}})"
    if not isinstance(count, int) or count < 1:
        _refuse(call, "the number of tiles is a positive integer", f"{{{name!r}: 8}}")
    size = _declared.get(name)
    if size is not None and size % count:
        _refuse(
            call, f"{count} tiles do not divide {name}, which is {size} long", near(size, count)
        )


def near(size: int, count: int) -> str:
    """Tile counts that would do."""
    whole = [n for n in range(1, size + 1) if size % n == 0]
    below = [n for n in whole if n < count][-1:]
    above = [n for n in whole if n > count][:1]
    return " or ".join(f"{n} tiles of {size // n}" for n in below + above)


def _check_names(names: Sequence[str | None]) -> None:
    given = [name for name in names if name is not None]
    for name in given:
        _check_name(name)
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        _refuse(
            f"the names {list(names)}",
            f"{', '.join(twice)} stands for several dimensions of one tensor",
            "give each dimension a name of its own",
        )


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        _refuse(f"the name {name!r}", "the name of a dimension is a string", "a name such as 'M'")


@_at_trace_time
def _refuse_size(name: str, declared: int, dim: int, size: int) -> NoReturn:
    _refuse(
        f"name_tensor_dims: dimension {dim} as {name}",
        f"{name} is declared to be {declared} long, the tensor's dimension {dim} is {size}",
        f"declare_tensor_dim({name!r}, {size}), or another name for this dimension",
    )


def _refuse(what: str, why: str, way_out: str) -> NoReturn:
    from torch_spyre._inductor.errors import HintError

    raise HintError(what, why, way_out=way_out)
