"""What experienced users of PyTorch do with a device, and expect to work as on any other."""

from __future__ import annotations

import copy
import gc
import itertools
import operator
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPYRE = "spyre"
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # CPU fallbacks are not the subject here


def same(on_card: torch.Tensor, on_host: torch.Tensor) -> bool:
    """Same dtype, shape, strides and values; 16-bit floats to the card's precision."""
    if (on_card.dtype, on_card.shape) != (on_host.dtype, on_host.shape):
        return False
    read = on_card.detach().cpu()
    if on_host.dtype in (torch.float16, torch.bfloat16):
        return torch.allclose(read.float(), on_host.float(), rtol=1e-2, atol=1e-3, equal_nan=True)
    if on_host.is_floating_point():
        return torch.allclose(read, on_host, rtol=1e-5, atol=1e-6, equal_nan=True)
    return torch.equal(read, on_host)


# ---- Printing and numbers -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3), (1100,), (40, 40), (2,) * 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_prints_like_the_cpus_with_its_device(dtype, shape):
    host = torch.ones(shape).to(dtype)

    def text(tensor: torch.Tensor) -> str:
        return "".join(repr(tensor).split())

    assert text(host.to(SPYRE)).replace(",device='spyre:0'", "") == text(host)


def test_python_sees_numbers_in_single_elements():
    assert int(torch.tensor(3, device=SPYRE)) == 3
    assert float(torch.tensor(2.5, device=SPYRE)) == 2.5
    assert [10, 20, 30][torch.tensor(1, device=SPYRE)] == 20
    assert f"{torch.tensor(2.5, device=SPYRE):.2f}" == "2.50"
    assert 2 in torch.arange(3, device=SPYRE)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        bool(torch.ones(2, device=SPYRE))
    with pytest.raises(TypeError, match=r"can't convert spyre:0 device type tensor to numpy"):
        torch.ones(2, device=SPYRE).numpy()
    assert torch.ones(2, device=SPYRE).numpy(force=True).tolist() == [1, 1]


# ---- Type promotion -----------------------------------------------------------------------------

OPERATORS = {
    f.__name__: f
    for f in (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
        *(operator.mod, operator.pow, operator.lt, operator.ge, operator.eq, operator.ne),
        *(operator.and_, operator.or_, operator.xor, operator.iadd, operator.imul),
        operator.itruediv,
    )
}


def operand_pairs() -> Iterator[tuple[object, object]]:
    """Vectors and 0-dim tensors of all dtypes with each other and with Python numbers."""
    vectors = [torch.tensor([1, 2, 3, 5]).to(dtype) for dtype in DTYPES]
    others = [torch.tensor([5, 4, 7, 1]).to(dtype) for dtype in DTYPES]
    for a, b in itertools.product(vectors, others):
        yield from ((a, b), (a, b[0]), (a[1], b), (a[1], b[0]))
    for vector, number in itertools.product(vectors, (2, 3, 2.5, -1)):
        yield from ((vector, number), (number, vector), (vector[1], number))


def copy_to(operand: object, device: str) -> object:
    return operand.to(device, copy=True) if isinstance(operand, torch.Tensor) else operand


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_promote_types_and_raise_as_on_the_cpu(name):
    def attempt(device: str) -> tuple[torch.Tensor | None, type[Exception] | None]:
        try:
            return OPERATORS[name](copy_to(a, device), copy_to(b, device)), None
        except (RuntimeError, TypeError) as error:
            return None, type(error)

    for a, b in operand_pairs():
        expected, expected_error = attempt("cpu")
        got, error = attempt(SPYRE)
        assert error == expected_error, (a, b)
        if expected is not None:
            assert got is not None and got.device.type == SPYRE, (a, b)
            assert same(got, expected), (a, b, got, expected)


def test_a_cpu_number_mixes_with_card_tensors_but_a_cpu_vector_does_not():
    x = torch.ones(3, device=SPYRE)
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert (torch.tensor(2) * x).device.type == SPYRE
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(3)


# ---- Views --------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as_strided": lambda x: x.as_strided((3, 4), (2, 5), 7),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1),
    "movedim": lambda x: x.movedim(2, 0),
    "narrow": lambda x: x.narrow(2, 3, 60),
    "permute": lambda x: x.permute(2, 0, 1),
    "reshape": lambda x: x.reshape(2, -1),
    "select": lambda x: x.select(2, 65),
    "slice": lambda x: x[:, 1:, 2:-1:3],
    "split": lambda x: x.split([1, 4], 1)[1],
    "squeeze": lambda x: x[:1].squeeze(0),
    "transpose": lambda x: x.transpose(0, 2),
    "unbind": lambda x: x.unbind(2)[64],
    "unfold": lambda x: x.unfold(2, 5, 3),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "view": lambda x: x.view(5, 140),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_views_read_compute_and_convert_like_the_cpus(name, dtype):
    host = (torch.arange(700) % 11).to(dtype).view(2, 5, 70)
    on_card, on_host = VIEWS[name](host.to(SPYRE)), VIEWS[name](host)
    assert on_card.stride() == on_host.stride()
    assert same(on_card, on_host)
    assert same(on_card.clone(), on_host.clone())
    assert same(on_card + on_card, on_host + on_host)
    assert same(on_card.to(torch.int32), on_host.to(torch.int32))
    assert same(on_card.flip(0), on_host.flip(0))


@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"as_strided", "expand", "unfold"}))
def test_writes_through_a_view_change_its_base_and_nothing_else(name):
    host = torch.arange(700.0).view(2, 5, 70)
    card = host.to(SPYRE)
    for base in (host, card):
        view = VIEWS[name](base)
        view.mul_(2).add_(1)
        view.copy_(view.detach().clone().transpose(0, -1).contiguous().transpose(0, -1))
        view[..., 0] = -1
    assert same(card, host)


# ---- Autograd -----------------------------------------------------------------------------------


def gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for device in ("cpu", SPYRE):
        x = torch.arange(12.0).reshape(3, 4).to(device).requires_grad_()
        function(x).sum().backward()
        assert x.grad is not None and x.grad.device == x.device
        found.append(x.grad.cpu())
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(4, 3).t()[1:].unsqueeze(0).expand(2, 2, 4).permute(2, 0, 1)[::2] * 3,
        lambda x: x.diagonal() + x.as_strided((3,), (2,), 1),
        lambda x: x.unfold(0, 2, 1) ** 2,
        lambda x: x.to(torch.float16).float() * x,
        lambda x: x.to("cpu").exp().to(x.device),
    ],
    ids=["chain", "diagonal", "unfold", "dtype", "device"],
)
def test_gradients_flow_through_views_dtypes_and_devices(function):
    on_host, on_card = gradients(function)
    assert torch.allclose(on_host, on_card, rtol=1e-3)


def test_writes_through_views_are_seen_by_autograd():
    def overwrite(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[1].mul_(3)
        y[:, 0] = 5
        return y

    on_host, on_card = gradients(overwrite)
    assert torch.equal(on_host, on_card)


def test_functional_transforms_work():
    x = torch.arange(3.0, device=SPYRE)
    assert torch.func.grad(lambda v: (v * v).sum())(x).tolist() == [0, 2, 4]
    assert torch.func.vmap(lambda v: v * 2 + 1)(x).tolist() == [1, 3, 5]
    assert torch.func.hessian(lambda v: (v**3).sum())(x).diagonal().tolist() == [0, 6, 12]
    _, tangent = torch.func.jvp(lambda v: v * v, (x,), (torch.ones_like(x),))
    assert tangent.tolist() == [0, 2, 4]


def test_inference_mode_makes_inference_tensors():
    with torch.inference_mode():
        x = torch.ones(3, device=SPYRE) * 2
        x.view(3, 1).add_(1)
    assert x.is_inference() and x.tolist() == [3, 3, 3]


# ---- Training -----------------------------------------------------------------------------------


def train(device: str, optimizer: type[torch.optim.Optimizer], **options: object) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.LayerNorm(7), nn.Linear(7, 2)).to(device)
    step = optimizer(model.parameters(), **options)  # type: ignore[call-arg]
    inputs = torch.linspace(-1, 1, 20).reshape(4, 5).to(device)
    labels = torch.tensor([0, 1, 0, 1], device=device)
    losses = []
    for _ in range(3):
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"lr": 0.01}),
        (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
        (torch.optim.Adam, {"lr": 0.01, "fused": True}),
        (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.Adafactor, {}),
    ],
    ids=["sgd", "adam", "adam-foreach", "adam-fused", "adamw", "adafactor"],
)
def test_training_on_the_card_follows_training_on_the_cpu(optimizer, options):
    assert train(SPYRE, optimizer, **options) == pytest.approx(
        train("cpu", optimizer, **options), abs=1e-3
    )


def test_an_optimizer_made_before_the_move_trains_the_moved_module():
    model = nn.Linear(2, 1)
    parameter = model.weight
    step = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(SPYRE)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2, device=SPYRE)).sum().backward()
    step.step()
    assert parameter is model.weight
    assert torch.allclose(before - model.weight, torch.ones_like(before))


def test_tied_parameters_stay_tied_through_moves_and_dtypes():
    embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head).to(SPYRE).half().float().cpu().to(SPYRE)
    assert model[0].weight is model[1].weight
    model(torch.tensor([1, 2], device=SPYRE)).sum().backward()
    assert model[0].weight.grad.shape == (10, 4)


# ---- Copies of objects --------------------------------------------------------------------------


def test_deepcopy_keeps_shared_storages_shared():
    base = torch.arange(10.0, device=SPYRE)
    left, right = copy.deepcopy((base[:5], base[5:]))
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert left.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert right.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_every_dtype_pickle(dtype):
    x = (torch.arange(35) % 5).view(5, 7).to(dtype).to(SPYRE)
    for view in (x, x.t(), x[1:, ::2], x[0, 0], x[:0]):
        copied = pickle.loads(pickle.dumps(view))
        assert copied.device == view.device and same(copied, view.cpu())


def test_a_storage_can_be_emptied_and_filled_again():
    """As sharded training does between the uses of a parameter."""
    x = torch.arange(6.0, device=SPYRE)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="resized"):
        x + 1
    x.untyped_storage().resize_(24)
    x.copy_(torch.arange(6.0))
    assert (x + 1).tolist() == [1, 2, 3, 4, 5, 6]


# ---- Data loading -------------------------------------------------------------------------------


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index**2)), index


class OnTheCard(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(3, device=SPYRE), index


def test_workers_load_into_pinned_memory_after_the_card_was_opened():
    torch.spyre.init()
    batches = list(DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True))
    assert all(values.is_pinned() and indices.is_pinned() for values, indices in batches)
    moved = [values.to(SPYRE, non_blocking=True) for values, _ in batches]
    assert [batch[:, 0].tolist() for batch in moved] == [[0, 1, 4, 9], [16, 25, 36, 49]]


def test_a_forked_worker_that_uses_the_card_says_what_to_do():
    torch.spyre.init()
    with pytest.raises(RuntimeError, match="use the 'spawn' start method"):
        list(DataLoader(OnTheCard(), num_workers=1, timeout=60))


# ---- Modes --------------------------------------------------------------------------------------


def test_fake_tensors_know_the_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3, 4, device=SPYRE)
        y = (x @ x.t()).half()
        assert (y.device.type, y.dtype, y.shape) == (SPYRE, torch.float16, (3, 3))
        assert x.to("cpu").device.type == "cpu"


def test_a_tensor_subclass_keeps_its_class():
    class Named(torch.Tensor):
        pass

    x = torch.ones(3, device=SPYRE).as_subclass(Named)
    assert type(x + 1) is Named and type(x.cpu()) is Named and type(x[1:]) is Named


# ---- Threads, interruptions, memory, exits ------------------------------------------------------


def test_eight_threads_with_their_own_streams_get_their_own_results():
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with torch.spyre.Stream(priority=number % 2):
                for size in (3, 70, 200) * 8:
                    host = torch.full((size, 65), float(number))
                    x = host.to(SPYRE)
                    results = (
                        (x + x) / 2,
                        x.t().contiguous().t(),
                        x.half().float(),
                        x.mean() + 0 * x,
                    )
                    wrong.extend(r for r in results if not torch.equal(r.cpu(), host))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_interruptions_at_any_moment_leave_the_device_usable(monkeypatch):
    # An alarm in a __del__ or a callback can't be raised. Whoever collects such exceptions (pytest
    # does) keeps the tensors of their frames alive.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    class InterruptedTestError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptedTestError

    before = signal.signal(signal.SIGALRM, interrupt)
    allocated = torch.spyre.memory_allocated()
    caught, x, y = 0, None, None
    try:
        for turn in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0005 * (turn % 20))
                deadline = time.monotonic() + 0.1  # an alarm inside a gc callback is lost
                while time.monotonic() < deadline:
                    x = torch.ones(3 + turn, 2 * turn + 5, device=SPYRE)
                    y = (x + 1).t().contiguous()
                    repr(y[:2])
            except InterruptedTestError:
                caught += 1
                # repr() has a torch.no_grad(), which stays if the alarm is inside its __enter__:
                # so it is with tensors of the CPU.
                torch.set_grad_enabled(True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught > 0
    assert (torch.arange(100.0, device=SPYRE) + 1).sum().item() == 5050
    del x, y
    gc.collect()
    assert torch.spyre.memory_allocated() == allocated


def resident_megabytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def test_freed_memory_goes_back_to_the_host():
    torch.spyre.empty_cache()
    before = resident_megabytes()
    x = torch.ones(64 << 20, device=SPYRE)
    torch.spyre.synchronize()
    assert resident_megabytes() - before > 200
    del x
    torch.spyre.empty_cache()
    assert resident_megabytes() - before < 30


def test_many_small_operations_do_not_grow_the_process():
    x, y = torch.ones(8, 8, device=SPYRE), torch.ones(8, 8, device=SPYRE)

    def work() -> None:
        for _ in range(10_000):
            x + y
        for _ in range(500):
            x.sum().item()
            with pytest.raises(RuntimeError):
                x + y[:, :3]
        torch.spyre.synchronize()

    work()
    before = resident_megabytes()
    work()
    assert resident_megabytes() - before < 4


def test_a_module_that_does_not_fit_can_go_back_to_the_host(check_python):
    check_python(
        """
        import torch
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
        expected = [p.clone() for p in model.parameters()]
        try:
            model.to("spyre")
        except torch.OutOfMemoryError as error:
            assert "64.00 MiB" in str(error)
        else:
            raise AssertionError("it fits?")
        model.cpu()
        assert all(map(torch.equal, model.parameters(), expected))
        """,
        SPYRE_CARD_MEMORY="64M",
    )


def test_a_process_may_end_with_work_queued_and_tensors_alive(check_python):
    done = check_python(
        """
        import atexit, torch
        x = torch.ones(1000, 1000, device="spyre")
        for _ in range(100):
            x = x * 1.0001
        cycle = [torch.spyre.Stream(), torch.spyre.Event(), torch.ones(3, device="spyre")]
        cycle.append(cycle)
        atexit.register(lambda: print((cycle[2] + 1).tolist()))
        """
    )
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]"
