"""Hints: names of dimensions follow dataflow, and scopes put wishes on the loops that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import torch_spyre
from torch_spyre import coarse_tile, declare_tensor_dim, hints, name_tensor_dims, spyre_hint
from torch_spyre._inductor import plan
from torch_spyre._inductor.dim_names import Dims, Named, follow, named
from torch_spyre._inductor.errors import HintError, Unsupported
from torch_spyre._inductor.graph import Op

DEVICE = "spyre"


@pytest.fixture(autouse=True)
def _setup() -> Iterator[None]:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)
    torch._dynamo.reset()
    with mock.patch.dict(hints._declared, clear=True):
        yield
    torch._dynamo.reset()


def halves(*size: int) -> torch.Tensor:
    """Quarters from -2 to 2: sums and products of them are exact."""
    return (torch.randint(-8, 9, size) / 4).half()


# ---- Names through operations -------------------------------------------------------------------


def followed(
    function: Callable[..., Any], *inputs: tuple[tuple[int, ...], list[str]]
) -> tuple[Named | None, torch.fx.GraphModule]:
    """The names of a function's result, whose inputs have these sizes and names."""
    with FakeTensorMode():
        gm = make_fx(function)(*(torch.empty(size) for size, _ in inputs))
    known: dict[torch.fx.Node, Named | None] = {}
    names = iter(inputs)
    result = None
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            known[node] = Named((named(*next(names)),))
        elif node.op == "output":
            (last,) = node.all_input_nodes
            result = known[last]
        else:
            known[node] = follow(node, known.__getitem__)
    return result, gm


def text(dims: Dims) -> list[str]:
    """Per dimension its parts, outermost first: M, M/128 for a part in steps of 128, 8 for none."""

    def part_text(part: Any) -> str:
        if not part.name:
            return str(part.size)
        whole = part.name if part.step == 1 else f"{part.name}/{part.step}"
        return whole if part.is_outermost else f"{whole}%{part.size}"

    return [" ".join(map(part_text, dim)) or "1" for dim in dims]


X = ((4, 8, 16), ["B", "M", "K"])
SQUARE = ((8, 8), ["M", "K"])
VECTOR = ((8,), ["M"])
ROWS = ((8, 16), ["", "K"])

TABLE = {
    "pointwise": (lambda x: torch.exp(x) + 1, [X], ["B", "M", "K"]),
    "broadcast": (lambda x, y: x + y, [((4, 1, 16), ["B", "", ""]), ROWS], ["B", "8", "K"]),
    "broadcast in front": (lambda x, y: y * x, [X, ((16,), [""])], ["B", "M", "K"]),
    "the first name of a loop": (lambda x, y: x + y, [VECTOR, ((8,), ["N"])], ["M"]),
    "comparison and choice": (lambda x: torch.where(x > 0, x, 0.0), [X], ["B", "M", "K"]),
    "conversion": (lambda x: x.half(), [X], ["B", "M", "K"]),
    "transpose of a square": (lambda x: x.t(), [SQUARE], ["K", "M"]),
    "permute": (lambda x: x.permute(2, 0, 1), [X], ["K", "B", "M"]),
    "transpose": (lambda x: x.transpose(-1, 0), [X], ["K", "M", "B"]),
    "unsqueeze": (lambda x: x.unsqueeze(1), [SQUARE], ["M", "1", "K"]),
    "squeeze": (lambda x: x.squeeze(0), [((1, 8), ["B", "M"])], ["M"]),
    "expand": (lambda x: x.expand(3, 8, 8), [SQUARE], ["3", "M", "K"]),
    "expand of one": (lambda x: x.expand(8, 8), [((1, 8), ["", "M"])], ["8", "M"]),
    "repeat": (lambda x: x.repeat(2, 1), [SQUARE], ["16", "K"]),
    "merge": (lambda x: x.view(32, 16), [X], ["B M", "K"]),
    "merge and split": (lambda x: x.view(32, 16).view(4, 8, 16), [X], ["B", "M", "K"]),
    "split": (lambda x: x.view(4, 2, 4, 16), [X], ["B", "M/4", "M%4", "K"]),
    "split and merge": (lambda x: x.view(4, 2, 4, 16).view(4, 8, 16), [X], ["B", "M", "K"]),
    "split of a merge": (lambda x: x.view(2, 16, 16), [X], ["B/2", "B%2 M", "K"]),
    "heads": (
        lambda x: x.view(4, 8, 2, 8).transpose(1, 2).reshape(8, 8, 8),
        [X],
        ["B K/8", "M", "K%8"],
    ),
    "uneven view": (lambda x: x.view(4, 6, 8), [((4, 8, 6), ["B", "M", "K"])], ["B", "6", "8"]),
    "slice": (lambda x: x[:, 2:4], [X], ["B", "2", "K"]),
    "whole slice": (lambda x: x[:, :8], [X], ["B", "M", "K"]),
    "select": (lambda x: x[1], [X], ["M", "K"]),
    "pad": (lambda x: F.pad(x, (0, 0, 1, -1)), [X], ["B", "8", "K"]),
    "split into parts": (lambda x: x.split(4, 1)[1], [X], ["B", "4", "K"]),
    "chunk": (lambda x: x.chunk(2, -1)[0], [X], ["B", "M", "8"]),
    "unbind": (lambda x: x.unbind(1)[2], [X], ["B", "K"]),
    "cat": (lambda x, y: torch.cat([x, y]), [SQUARE, ((4, 8), ["", ""])], ["12", "K"]),
    "stack": (lambda x: torch.stack([x, x], 1), [SQUARE], ["M", "2", "K"]),
    "mm": (lambda x, w: x @ w, [SQUARE, ((8, 4), ["", "N"])], ["M", "N"]),
    "mv": (lambda x, v: torch.mv(x, v), [SQUARE, VECTOR], ["M"]),
    "bmm": (lambda x, y: torch.bmm(x, y), [X, ((4, 16, 2), ["", "", "N"])], ["B", "M", "N"]),
    "addmm": (
        lambda b, x, w: torch.addmm(b, x, w),
        [((4,), ["N"]), SQUARE, ((8, 4), ["", ""])],
        ["M", "N"],
    ),
    "linear": (lambda x, w: x @ w, [X, ((16, 4), ["", "N"])], ["B", "M", "N"]),
    "sum": (lambda x: x.sum(1), [X], ["B", "K"]),
    "sum that keeps": (lambda x: x.sum((0, -1), keepdim=True), [X], ["1", "M", "1"]),
    "argmax": (lambda x: x.argmax(-1), [X], ["B", "M"]),
    "values of max": (lambda x: x.max(1).values, [X], ["B", "K"]),
    "var": (lambda x: x.var(-1, keepdim=True), [X], ["B", "M", "1"]),
    "softmax": (lambda x: torch.softmax(x, -1), [X], ["B", "M", "K"]),
    "embedding": (
        lambda w, i: F.embedding(i.long(), w),
        [((10, 16), ["", "K"]), ((4, 8), ["B", "M"])],
        ["B", "M", "K"],
    ),
    "index": (lambda x, i: x[:, i.long()], [X, ((3,), ["I"])], ["B", "I", "K"]),
}


@pytest.mark.parametrize("name", TABLE)
def test_names_follow_dataflow(name: str) -> None:
    function, inputs, expected = TABLE[name]
    result, gm = followed(function, *inputs)
    assert result is not None, gm.code
    assert text(result.results[0]) == expected, gm.code


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x, w: torch.mm(x, w), [SQUARE, ((8, 4), ["", "N"])], ["K"]),
        (lambda x, w: torch.mm(x, w), [((8, 8), ["M", ""]), ((8, 4), ["K", ""])], ["K"]),
        (lambda x: x.sum((0, 2)), [X], ["B", "K"]),
        (lambda x: x.sum(), [X], ["B", "M", "K"]),
        (lambda x: x.amax(-1), [X], ["K"]),
    ],
)
def test_names_of_reduced_dimensions(function: Any, inputs: Any, expected: list[str]) -> None:
    result, _ = followed(function, *inputs)
    assert result is not None
    assert text(result.reduced) == expected


def test_names_end_at_an_unknown_operation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="torch_spyre.inductor"):
        result, _ = followed(lambda x: x.flip(0) + 1, SQUARE)
    assert result is None
    assert "end at flip" in caplog.text


# ---- From compiled functions to operations ------------------------------------------------------


@contextmanager
def planned() -> Iterator[list[Op]]:
    """The operations of graphs that are compiled inside, before any pass."""
    ops: list[Op] = []
    run_passes = plan.run_passes

    def run(graph: Any) -> None:
        ops.extend(graph.ops)
        run_passes(graph)

    with mock.patch.object(plan, "run_passes", run):
        yield ops


def compiled(function: Callable[..., Any], *args: torch.Tensor, is_same: bool = True) -> list[Op]:
    """Operations of a function that Dynamo captures in one graph; its results are checked."""
    wanted = function(*(arg.detach().clone() for arg in args))
    counters.clear()
    with fresh_cache(), planned() as ops:
        result = torch.compile(function, fullgraph=True)(*(arg.to(DEVICE) for arg in args))
    assert counters["stats"]["unique_graphs"] == 1
    if is_same:
        torch.testing.assert_close(result.cpu(), wanted)
    return ops


def wishes(ops: list[Op]) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Per operation its opcode, and for each wish the name, the tiles and the loop."""
    return [(op.opcode, [wish[1:] for wish in op.wishes]) for op in ops]


def test_a_scope_puts_wishes_on_its_operations_and_no_others() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        declare_tensor_dim("M", 128)
        name_tensor_dims(x, ["M", "K"])
        with spyre_hint(num_tiles_per_dim={"M": 8}):
            y = x @ w
            y = y - y.amax(0, keepdim=True)
        return y @ w

    ops = compiled(function, halves(128, 64), halves(64, 64).sign())
    tiled = [("M", 8, 0)]
    assert wishes(ops) == [
        ("batchmatmul", tiled),
        ("amax", [("M", 8, 1)]),  # its loops: one per column, then the reduced rows
        ("sub", tiled),
        ("batchmatmul", []),
    ]
    assert ops[1].reduced == (1,)


def test_scopes_nest_with_the_outermost_first() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["M", "K"])
        name_tensor_dims(w, ["K", "N"])
        with spyre_hint({"N": 2}), spyre_hint({"M": 8}), spyre_hint({"K": 4}):
            return x @ w

    (op,) = compiled(function, halves(128, 256), halves(256, 128).sign())
    assert [wish[1:] for wish in op.wishes] == [("N", 2, 1), ("M", 8, 0), ("K", 4, 2)]
    assert op.reduced == (2,)
    assert len({wish.scope for wish in op.wishes}) == 3


def test_one_dimension_in_two_scopes_is_tiled_twice() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["M", "K"])
        with spyre_hint({"M": 4}), spyre_hint({"M": 8}):
            return torch.relu(x)

    (op,) = compiled(function, halves(32, 64))
    assert [wish[1:] for wish in op.wishes] == [("M", 4, 0), ("M", 8, 0)]


def test_equal_scopes_one_after_the_other_are_two() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["M", "K"])
        with spyre_hint({"M": 4}):
            y = x @ w
        with spyre_hint({"M": 4}):
            return y @ w

    first, second = compiled(function, halves(32, 64), halves(64, 64).sign())
    assert first.wishes[0].scope != second.wishes[0].scope


def test_tiles_are_of_the_named_part_of_a_merged_loop() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["B", "S", "D"])
        with spyre_hint({"S": 4}):
            return torch.relu(F.linear(x, w, b))

    ops = compiled(function, halves(2, 64, 128), halves(128, 128).sign(), halves(128))
    # PyTorch multiplies 128 rows; here they are two times 64 again.
    assert ops[0].extents == (2, 64, 128, 128)
    assert {tuple(wish[1:] for wish in op.wishes) for op in ops} == {(("S", 4, 1),)}


def test_attention_is_tiled_by_names_and_not_by_sizes() -> None:
    """Batch, heads and tiles are all 4, rows and columns of the scores both 64."""

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(q, ["B", "H", "Q", None])
        name_tensor_dims(k, ["B", "H", "K", None])
        with spyre_hint({"H": 4}), spyre_hint({"K": 4}):
            return torch.softmax(k @ q.transpose(2, 3), 2)

    q, k = (torch.randn(4, 4, 64, 64).half() / 8 for _ in "qk")
    ops = compiled(function, q, k, is_same=False)
    reduced = {op.opcode: op.extents for op in ops if op.reduced}
    assert set(reduced) == {"batchmatmul", "amax", "sum"}
    for op in ops:
        names = [(wish.dim_name, wish.tiles) for wish in op.wishes]
        is_per_column = op.extents == (4, 4, 64)  # what was reduced over K
        assert names == [("H", 4)] if is_per_column else [("H", 4), ("K", 4)], op.describe()
        assert op.wishes[0].output_dim == 1
        if not is_per_column:
            at = op.wishes[1].output_dim
            assert at == (op.reduced[0] if op.opcode in ("amax", "sum") else 2)


def test_named_dims_name_what_has_no_inputs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint({"N": 2}, named_dims=["M", "N"]):
            return torch.full((32, 128), 2.0, dtype=torch.half, device=x.device) * x

    (op,) = compiled(function, halves(32, 128))
    assert [wish[1:] for wish in op.wishes] == [("N", 2, 1)]


def test_names_can_be_given_to_intermediate_results() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        name_tensor_dims(y, [None, "N"])
        with spyre_hint({"N": 2}):
            return y.t() * 2

    ops = compiled(function, halves(64, 64), halves(64, 128).sign())
    assert wishes(ops) == [("batchmatmul", []), ("mul", [("N", 2, 0)])]


def test_hints_change_no_operation() -> None:
    """A call that names is nobody's user: what was computed in one loop still is."""

    def function(scope: Callable[[], Any], name: Callable[..., None]) -> Callable[..., Any]:
        def run(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            name(y, ["M", "K"])
            with scope():
                return torch.relu(y + 1)

        return run

    with_hints = compiled(function(lambda: spyre_hint({"M": 4}), name_tensor_dims), halves(32, 64))
    without = compiled(function(nullcontext, lambda *_: None), halves(32, 64))
    assert [op.describe() for op in with_hints] == [op.describe() for op in without]
    assert all(op.wishes for op in with_hints) and not any(op.wishes for op in without)


def test_a_model_with_hints_trains() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["M", "K"])
        with spyre_hint({"M": 4}):
            return torch.relu(x @ w)

    x, w = halves(32, 64), halves(64, 64).sign()
    host, card = w.clone().requires_grad_(), w.to(DEVICE).requires_grad_()
    function(x, host).sum().backward()
    with fresh_cache(), planned() as ops:
        torch.compile(function, fullgraph=True)(x.to(DEVICE), card).sum().backward()
    assert ops[0].wishes
    assert card.grad is not None
    torch.testing.assert_close(card.grad.cpu(), host.grad)


def test_other_hints_are_compiled_anew_and_the_same_ones_are_found() -> None:
    def with_tiles(tiles: int) -> Callable[..., torch.Tensor]:
        def function(x: torch.Tensor) -> torch.Tensor:
            name_tensor_dims(x, ["M", "K"])
            with spyre_hint({"M": tiles}):
                return x + 1

        return function

    x = halves(32, 64).to(DEVICE)
    found = []
    with fresh_cache():
        for tiles in (4, 8, 4):
            torch._dynamo.reset()
            with planned() as ops, torch.no_grad():
                torch.compile(with_tiles(tiles))(x)
            found.append([wish.tiles for op in ops for wish in op.wishes])
    assert found == [[4], [8], []]


# ---- Elsewhere ----------------------------------------------------------------------------------


def hinted(x: torch.Tensor) -> torch.Tensor:
    declare_tensor_dim("M", 32)
    name_tensor_dims(x, ["M", "K"])
    with spyre_hint({"M": 4}):
        return x + 1


def test_hints_do_nothing_in_eager_mode() -> None:
    x = halves(32, 64)
    assert torch.equal(hinted(x.to(DEVICE)).cpu(), x + 1)
    assert torch.fx.traceback.current_meta == {}


def test_hints_do_nothing_on_the_cpu() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm

    x = torch.ones(32, 64)
    assert torch.equal(torch.compile(hinted, backend=keep, fullgraph=True)(x), x + 1)
    (gm,) = graphs
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_function", "output"]


def test_the_package_offers_the_hints() -> None:
    for name in hints.__all__:
        assert getattr(torch_spyre, name) is getattr(hints, name)


# ---- coarse_tile --------------------------------------------------------------------------------


def tiles_of(function: Callable[..., Any], *args: torch.Tensor) -> list[list[int]]:
    """Per operation the tiles that are wished for, outermost first."""
    return [[wish.tiles for wish in op.wishes] for op in compiled(function, *args)]


def affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def test_coarse_tile_needs_no_names() -> None:
    x, w = halves(128, 256), halves(256, 128).sign()
    assert tiles_of(coarse_tile(affine, tiles={0: 4}), x, w) == [[4], [4]]
    assert tiles_of(coarse_tile(affine, tiles={-1: 4}), x, w) == [[4], []]  # k
    assert tiles_of(coarse_tile(affine, tiles={1: 2}, argument=1), x, w) == [[2], [2]]
    assert tiles_of(coarse_tile(affine, tiles={0: 4, 1: 2}), x, w) == [[4, 2], [4]]


def test_the_argument_is_given_by_position_or_name() -> None:
    x, w = halves(128, 64), halves(64, 128).sign()

    def by_keyword(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return coarse_tile(affine, tiles={1: 2}, argument=1)(x, w=w)

    assert tiles_of(by_keyword, x, w) == [[2], [2]]
    assert tiles_of(coarse_tile(affine, tiles={1: 2}, argument="w"), x, w) == [[2], [2]]


def test_coarse_tile_decorates_functions_and_modules() -> None:
    @coarse_tile(tiles={0: 4})
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert decorated.__name__ == "decorated"
    assert tiles_of(decorated, halves(32, 64)) == [[4]]
    assert tiles_of(coarse_tile(torch.nn.ReLU(), tiles={0: 4}), halves(32, 64)) == [[4]]
    assert torch.equal(decorated(torch.ones(3)), torch.full((3,), 2.0))  # eager, elsewhere


def test_coarse_tiles_of_two_arguments_nest() -> None:
    by_rows = coarse_tile(affine, tiles={0: 4})
    x, w = halves(128, 64), halves(64, 128).sign()
    assert tiles_of(coarse_tile(by_rows, tiles={1: 2}, argument="w"), x, w) == [[2, 4], [2, 4]]


def test_calls_with_tensors_of_other_sizes_have_tiles_of_their_own() -> None:
    tiled = coarse_tile(torch.relu, tiles={0: 4})

    def function(x: torch.Tensor) -> torch.Tensor:
        return tiled(x)[:32].sum() + tiled(x[:64]).sum()

    assert [4] in tiles_of(function, halves(128, 64))


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("tiles", "argument", "why"),
    [
        ({2: 4}, 0, "the tensor has 2 dimensions"),
        ({0: 4}, 2, "without a tensor as this argument"),
        ({0: 4}, "z", "without a tensor as this argument"),
    ],
)
def test_coarse_tile_refuses_what_the_call_does_not_have(
    tiles: dict[int, int], argument: int | str, why: str, is_compiled: bool
) -> None:
    tiled = coarse_tile(affine, tiles=tiles, argument=argument)
    run = torch.compile(tiled) if is_compiled else tiled
    with pytest.raises(HintError, match=why):
        run(halves(32, 64).to(DEVICE), halves(64, 64).to(DEVICE))


@pytest.mark.parametrize("tiles", [{}, {0: 0}, {"M": 4}])
def test_coarse_tile_refuses_tiles_that_say_nothing(tiles: Any) -> None:
    with pytest.raises(HintError, match=r"tiles=\{0: 8\}"):
        coarse_tile(affine, tiles=tiles)


# ---- Errors -------------------------------------------------------------------------------------


def named_wrongly(x: torch.Tensor) -> None:
    declare_tensor_dim("M", 100)
    name_tensor_dims(x, ["M", "K"])


WRONG_CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "100 long, the tensor's dimension 0 is 32": (named_wrongly, "declare_tensor_dim('M', 32)"),
    "1 names for a tensor of 2": (lambda x: name_tensor_dims(x, ["M"]), "one name per dimension"),
    "M stands for several": (lambda x: name_tensor_dims(x, ["M", "M"]), "a name of its own"),
    "positive integer": (lambda _: declare_tensor_dim("M", 0), "declare_tensor_dim('M', 1024)"),
    "names 2": (
        lambda _: spyre_hint({"M": 8, "N": 2}),
        "with spyre_hint({'M': 8}), spyre_hint({'N': 2}):",
    ),
    "it says nothing": (lambda _: spyre_hint(), "num_tiles_per_dim"),
    "number of tiles": (lambda _: spyre_hint({"M": 0}), "{'M': 8}"),
    "5 tiles do not divide M, which is 32 long": (
        lambda _: (declare_tensor_dim("M", 32), spyre_hint({"M": 5})),
        "4 tiles of 8 or 8 tiles of 4",
    ),
    "is a string": (lambda _: spyre_hint({"": 5}), "such as 'M'"),
}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("why", WRONG_CALLS)
def test_wrong_arguments_are_refused_in_both_modes(why: str, is_compiled: bool) -> None:
    call, way_out = WRONG_CALLS[why]

    def function(x: torch.Tensor) -> torch.Tensor:
        call(x)
        return x + 1

    run = torch.compile(function) if is_compiled else function
    with pytest.raises(HintError) as raised:
        run(halves(32, 64).to(DEVICE))
    assert why in str(raised.value) and way_out in str(raised.value)


def test_a_hint_error_is_a_value_error() -> None:
    assert issubclass(HintError, ValueError) and issubclass(HintError, Unsupported)


def unknown_name(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    with spyre_hint({"Z": 4}):
        return x + 1


def uneven_tiles(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    with spyre_hint({"M": 5}):
        return x + 2


def too_many_tiles_together(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    with spyre_hint({"M": 8}), spyre_hint({"M": 8}):
        return x + 3


def name_elsewhere(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    y = x.sum(0)
    with spyre_hint({"M": 4}):
        y = y + 4
    return x + y


def only_a_view(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    with spyre_hint({"M": 4}):
        y = x.t()
    return y + 5


def two_sizes(x: torch.Tensor) -> torch.Tensor:
    name_tensor_dims(x, ["M", "K"])
    y = x.t() + 6
    name_tensor_dims(y, ["M", "K"])
    with spyre_hint({"M": 4}):
        return y + 7


@pytest.mark.parametrize(
    ("function", "line", "why", "way_out"),
    [
        (unknown_name, "x + 1", "of the name Z; there are: K, M", "name_tensor_dims"),
        (uneven_tiles, "x + 2", "5 tiles do not divide M, which is 32", "4 tiles of 8"),
        (too_many_tiles_together, "x + 3", "no operation in it has M", "take the scope away"),
        (name_elsewhere, "y + 4", "no operation in it has M", "take the scope away"),
        (only_a_view, "x.t()", "no operation in it has M", "take the scope away"),
        (two_sizes, "x.t() + 6", "M is also the name of one that is 32", "different names"),
    ],
)
def test_hints_that_a_graph_cannot_follow(
    function: Callable[..., Any], line: str, why: str, way_out: str
) -> None:
    x = halves(32, 64).to(DEVICE)
    with fresh_cache(), pytest.raises(HintError) as raised:
        torch.compile(function, fullgraph=True)(x)
    message = str(raised.value)
    assert line in message and "test_hints.py" in message
    assert why in message and way_out in message


def test_a_size_that_changes_has_no_tiles() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        name_tensor_dims(x, ["M", "K"])
        with spyre_hint({"M": 4}):
            return x + 1

    x = halves(32, 64).to(DEVICE)
    torch._dynamo.mark_dynamic(x, 0)
    with fresh_cache(), pytest.raises(HintError, match="changes between calls"):
        torch.compile(function, fullgraph=True)(x)
