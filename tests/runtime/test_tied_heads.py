"""A table that is a weight as well: its products use a copy, which is never out of date."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_spyre import _C
from torch_spyre.tools.measure import compiled_kernels, measure
from torch_spyre.tools.plans import plans_of

ROWS, WIDTH = 300, 192


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half().to("spyre")


def table_in_use() -> nn.Parameter:
    """A table that was looked up and multiplied with, so that there is a copy for products."""
    table = nn.Parameter(random(ROWS, WIDTH))
    with torch.no_grad():
        functional.embedding(torch.tensor([1, 2]).to("spyre"), table)
        functional.linear(random(4, WIDTH), table)
    return table


def steps(work: Callable[[], object]) -> list[str]:
    with torch.no_grad():
        return [step for plan in plans_of(work) for launch in plan.launches for step in launch]


def test_a_product_lays_the_table_out_once():
    x, table = random(4, WIDTH), nn.Parameter(random(ROWS, WIDTH))
    wanted = (x @ table.detach().clone().t()).cpu()
    rows = functional.embedding(torch.arange(ROWS).to("spyre"), table)
    before = table.device_tensor_layout()
    *others, product = steps(lambda: functional.linear(x, table))
    assert set(others) == {"restickify"} and product == "batchmatmul"
    assert steps(lambda: functional.linear(x[:3], table)) == ["batchmatmul"]
    assert "restickify" not in steps(lambda: functional.linear(x, table, random(ROWS)))
    with torch.no_grad():
        assert torch.equal(functional.linear(x, table).cpu(), wanted)
        with torch.inference_mode():
            assert torch.equal(functional.linear(x, table).cpu(), wanted)
    assert table.device_tensor_layout() == before  # its rows can be looked up
    assert torch.equal(rows.cpu(), table.cpu())


def test_a_gradient_reaches_the_table_itself():
    x, table = random(4, WIDTH), table_in_use()
    functional.linear(x, table).sum().backward()
    wanted = x.cpu().float().sum(0).expand(ROWS, WIDTH)
    torch.testing.assert_close(table.grad.cpu().float(), wanted, rtol=1e-2, atol=1e-2)


def by_optimizer(table: nn.Parameter) -> None:
    table.grad = torch.ones_like(table)
    torch.optim.SGD([table], lr=0.5).step()


def by_storage(table: nn.Parameter) -> None:
    table.untyped_storage().copy_(random(ROWS, WIDTH).untyped_storage())


def by_data(table: nn.Parameter) -> None:
    table.data = random(ROWS, WIDTH)


def by_layout(table: nn.Parameter) -> None:
    layout = [ROWS, WIDTH // 64, 64], [WIDTH, 64, 1], _C.DataFormats.SEN169_FP16
    _C.set_spyre_tensor_layout(table.detach(), _C.SpyreTensorLayout(*layout))
    table.data[7] = 3


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda table: table.add_(1),
    "through data, unseen by version counters": lambda table: table.data.mul_(2),
    "one element": lambda table: table.data[3, 5].fill_(7),
    "a row": lambda table: table.data.__setitem__(3, 2.5),
    "rows by index": lambda table: table.data.__setitem__(
        torch.tensor([1, 9]).to("spyre"), random(2, WIDTH)
    ),
    "from the host": lambda table: table.copy_(torch.randn(ROWS, WIDTH)),
    "a part from the host": lambda table: table.data[5:9].copy_(torch.randn(4, WIDTH)),
    "from the card": lambda table: table.copy_(random(ROWS, WIDTH)),
    "out=": lambda table: torch.add(random(ROWS, WIDTH), 1, out=table.data),
    "lists": lambda table: torch._foreach_add_([random(2, 2), table.data], 1.0),
    "random numbers": lambda table: table.data.normal_(),
    "a mask": lambda table: table.data.masked_fill_(table.data > 0, 1),
    "an optimiser": by_optimizer,
    "the storage": by_storage,
    "other data": by_data,
    "another layout": by_layout,
    "other numbers of the same bits": lambda table: table.data.view(torch.int16).zero_(),
    "a compiled function": lambda table: torch.compile(lambda t: t.mul_(0.5))(table.data),
    "initialisation": nn.init.ones_,
    "a state dict": lambda table: nn.Embedding(ROWS, WIDTH, _weight=table).load_state_dict(
        {"weight": torch.randn(ROWS, WIDTH)}
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_whatever_writes_to_the_table_is_seen_by_the_next_product(name):
    x, table = random(4, WIDTH), table_in_use()
    before = table.cpu().clone()
    with torch.no_grad():
        for _ in range(2):
            WRITES[name](table)
            assert not torch.equal(table.cpu(), before)
            wanted = x @ table.detach().clone().t()
            assert torch.equal(functional.linear(x, table).cpu(), wanted.cpu())


def test_another_stream_waits_for_the_copy():
    x, table = random(4, WIDTH), nn.Parameter(random(ROWS, WIDTH))
    wanted = (x @ table.detach().clone().t()).cpu()
    busy = random(1024, 1024)
    with torch.no_grad():
        functional.embedding(torch.tensor([1, 2]).to("spyre"), table)
        torch.spyre.synchronize()
        with torch.spyre.stream(torch.spyre.Stream()):
            for _ in range(8):
                busy = busy @ busy
            functional.linear(x, table)
        with torch.spyre.stream(torch.spyre.Stream()):
            found = functional.linear(x, table)
    torch.spyre.synchronize()
    assert torch.equal(found.cpu(), wanted)


def test_the_copy_goes_with_the_table():
    gc.collect()
    before = torch.spyre.memory_allocated()
    table = nn.Parameter(random(ROWS, WIDTH))
    alone = torch.spyre.memory_allocated() - before
    with torch.no_grad():
        functional.embedding(torch.tensor([1]).to("spyre"), table)
        for _ in range(3):
            functional.linear(random(4, WIDTH), table)
            table.add_(1)
    assert alone < torch.spyre.memory_allocated() - before < 2.1 * alone
    del table
    assert torch.spyre.memory_allocated() == before


def test_who_needs_the_memory_gets_it(check_python):
    check_python(
        """
        import torch
        from torch.nn import functional

        x = torch.randn(1, 1024).half().to("spyre")
        table = torch.nn.Parameter(torch.ones(8192, 1024).half().to("spyre"))
        with torch.no_grad():
            functional.embedding(torch.tensor([1]).to("spyre"), table)
            result = functional.linear(x, table).cpu()
            assert torch.spyre.memory_allocated() > 32 << 20
            more = torch.zeros(50 << 20, dtype=torch.int8, device="spyre")
            assert torch.spyre.memory_allocated() < 70 << 20
            del more
            assert torch.equal(functional.linear(x, table).cpu(), result)
        """,
        SPYRE_CARD_MEMORY=str(72 << 20),
    )


# ---- Compiled -----------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(functional.silu(self.table(tokens)))


def tied() -> Tied:
    torch.manual_seed(0)
    torch.compiler.reset()
    return Tied().half().to("spyre")


TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


@torch.no_grad()
def test_a_compiled_head_reads_the_copy_and_nothing_is_laid_out_per_call():
    model, tokens = tied(), TOKENS.to("spyre")
    compiled = torch.compile(model)
    _, cost = measure(compiled, tokens)
    assert "restickify" not in [step.operation for step in compiled_kernels()[-1].steps]
    assert cost.launches == 1
    for _ in range(2):
        assert torch.equal(compiled(tokens).cpu(), model(tokens).cpu())
        model.table.weight.data.mul_(2)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_head_serves_other_lengths_and_other_weights(dynamic):
    model = tied()
    compiled = torch.compile(model, dynamic=dynamic)
    for length in (3, 5, 9):
        tokens = torch.arange(length)[None].to("spyre")
        assert torch.equal(compiled(tokens).cpu(), model(tokens).cpu())
    model.table.weight = model.head.weight = nn.Parameter(random(ROWS, WIDTH))
    assert torch.equal(compiled(tokens).cpu(), model(tokens).cpu())


def test_training_goes_through_the_table():
    model, tokens = tied(), TOKENS.to("spyre")
    torch.compile(model)(tokens).float().square().sum().backward()
    found, model.table.weight.grad = model.table.weight.grad.cpu().float(), None
    model(tokens).float().square().sum().backward()
    wanted = model.table.weight.grad.cpu().float()
    assert (found - wanted).norm() < 0.01 * wanted.norm()


def test_a_graph_that_records_for_itself_goes_through_the_table():
    model, tokens = tied(), TOKENS.to("spyre")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return model(tokens)

    with torch.no_grad():
        result = torch.compile(step)(tokens)
    result.sum().backward()
    unused = 100  # a row that is not looked up has the gradient of the head alone
    assert model.table.weight.grad[unused].cpu().abs().max() > 0


def test_a_graph_that_writes_to_the_table_multiplies_with_what_it_wrote():
    model, tokens = tied(), TOKENS.to("spyre")
    twin = tied()

    def step(model: Tied, tokens: torch.Tensor) -> torch.Tensor:
        model.table.weight.mul_(2)
        return model(tokens)

    with torch.no_grad():
        wanted = step(twin, tokens)
        assert torch.equal(torch.compile(step)(model, tokens).cpu(), wanted.cpu())
        assert torch.equal(model(tokens).cpu(), twin(tokens).cpu())
