"""Compile times: measured per stage, with the sizes of the graph."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch

from torch_spyre._inductor import debug, observe, runtime
from torch_spyre._inductor.passes import PASSES
from torch_spyre.tools.timing import CompileTime, Stage, compile_times, time_compiles


def compiled(function, *inputs: torch.Tensor):
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True), time_compiles() as compiles:
        result = torch.compile(function)(*inputs)
    return result, compiles


def test_every_pass_has_a_time_and_the_size_of_the_graph():
    x = torch.rand(64, 100).half().to("spyre")
    _, (found,) = compiled(lambda x: x.softmax(-1) @ x.t(), x)
    names = [stage.name for stage in found.stages]
    passes = [pass_.__name__ for pass_ in PASSES]
    assert [name for name in names if name in passes] == passes
    assert names[:3] == ["Dynamo", "imports and set-up", "AOTAutograd"] and names[-2:] == [
        "back end, waited for",
        "everything else",
    ]
    by_name = {stage.name: stage for stage in found.stages}
    assert by_name["insert_restickifies"].size == "7 -> 8 operations"
    assert by_name["Dynamo"].unit == "nodes"
    assert all(stage.seconds >= 0 for stage in found.stages)
    assert found.kernels == 1
    assert f"{found.seconds * 1e3:,.1f}" in found.table().splitlines()[-1]


def test_a_backward_graph_is_a_compile_of_its_own():
    x = torch.rand(64, 100, requires_grad=True, device="spyre")
    with time_compiles() as compiles:
        result, _ = compiled(lambda x: (x.exp() * x).sum(), x)
        result.backward()
    assert len(compiles) == 2


def test_shares_are_of_the_whole_and_sizes_in_words():
    table = CompileTime((Stage("one", 0.003, 5, 7), Stage("two", 0.001, 7, 7)), 2, 1, 0.5).table()
    assert [line.split() for line in table.splitlines()[1:3]] == [
        ["one", "3.0", "75%", "5", "->", "7", "operations"],
        ["two", "1.0", "25%", "7", "operations"],
    ]
    assert table.splitlines()[-1].split()[:2] == ["total", "4.0"]


def test_nobody_observes_unless_asked(monkeypatch):
    observers = []
    monkeypatch.setattr(debug, "show", lambda *_: observers.append(observe.current()))
    x = torch.ones(3, device="spyre")
    compiled(lambda x: x + 1, x)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(lambda x: x + 1)(x)
    assert [len(found) for found in observers] == [1, 0] and compile_times() == []


def test_a_compile_that_fails_has_no_table_and_leaves_nobody_watching():
    def control(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with time_compiles() as compiles, pytest.raises(RuntimeError, match="control flow"):
        torch.compile(control)(torch.ones(3, device="spyre"))
    assert compiles == [] and observe.current() == ()


class Told(observe.Observer):
    """Knows how the compile ended; may raise then."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.ends: list[bool] = []
        self.error = error

    def finish(self, succeeded: bool) -> None:
        self.ends.append(succeeded)
        if self.error is not None:
            raise self.error


def compile_with(*observers: Told) -> None:
    with contextlib.ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observe.observing(lambda *_, observer=observer: observer))
        with observe.compiling(0):
            assert observe.current() == observers


def test_all_are_told_of_the_end_though_one_raises():
    observers = Told(), Told(KeyboardInterrupt()), Told()
    with pytest.raises(KeyboardInterrupt):
        compile_with(*observers)
    assert [observer.ends for observer in observers] == [[True], [True], [False]]
    assert observe.current() == ()


def test_a_kernel_that_fails_is_raised_by_its_launch_not_by_the_clock(monkeypatch):
    def fail(*_: object) -> None:
        time.sleep(0.5)  # so that the clock has to wait for it
        raise ZeroDivisionError("in the back end")

    monkeypatch.setattr(runtime, "compile_bundle", fail)
    x, told = torch.ones(7, 9, device="spyre"), Told()
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        time_compiles() as compiles,
        observe.observing(lambda *_: told),
        pytest.raises(ZeroDivisionError) as raised,
    ):
        torch.compile(lambda x: x * 3 - 5)(x)
    assert told.ends == [True] and len(compiles) == 1
    assert "_first_launch" in [entry.name for entry in raised.traceback]


def test_the_variable_prints_a_table_after_each_compile(check_python):
    script = """
    import torch
    torch._inductor.config.force_disable_caches = True
    x = torch.rand(64, 100).half().to("spyre")
    for function in (torch.exp, torch.sin):
        torch.compile(lambda x: function(x))(x)
    from torch_spyre.tools.timing import compile_times
    print(len(compile_times()))
    """
    done = check_python(script, TORCH_SPYRE_TIMING="1")
    assert done.stdout == "2\n" and done.stderr.count("compile time, measured") == 2
    assert "plan_cores_and_memory" in done.stderr
