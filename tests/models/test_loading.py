"""Weights on their way to the card: from files, through transformers, and back."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

import safetensors.torch
import transformers as hf

import torch_spyre
from torch_spyre import _C
from torch_spyre.tools import progress
from torch_spyre.tools.plans import plans_of

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama(is_tied: bool) -> nn.Module:
    torch.manual_seed(0)
    config = hf.LlamaConfig(**SIZES, tie_word_embeddings=is_tied)
    return hf.LlamaForCausalLM(config).to(torch.bfloat16).eval()


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def saved(request, tmp_path_factory) -> tuple[nn.Module, Path]:
    """A bfloat16 model on the CPU, and its checkpoint in three shards or more."""
    model, folder = llama(request.param), tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return model, folder


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())


def check_loaded(loaded: nn.Module, model: nn.Module, dtype: torch.dtype) -> None:
    """On the card, with the values of the CPU's model, tied like it, and right."""
    tensors = [*loaded.parameters(), *loaded.buffers()]
    assert {str(tensor.device) for tensor in tensors} == {"spyre:0"}
    for name, value in model.state_dict().items():
        assert same(loaded.state_dict()[name], value.to(dtype)), name
    is_tied = model.config.tie_word_embeddings
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied
    pointers = {p.data_ptr() for p in loaded.state_dict().values()}
    assert len(pointers) == len(model.state_dict()) - is_tied
    tokens = torch.randint(3, SIZES["vocab_size"], (2, 9))
    with torch.no_grad():
        wanted = llama(is_tied).float()(tokens).logits
        found = loaded.eval()(tokens.to("spyre")).logits.cpu().float()
    assert (found - wanted).norm() < 0.01 * wanted.norm()


# ---- transformers -------------------------------------------------------------------------------


@pytest.mark.parametrize("device_map", ["spyre", {"": "spyre:0"}, 0], ids=str)
def test_from_pretrained_puts_a_model_on_the_card(saved, device_map):
    model, folder = saved
    check_loaded(type(model).from_pretrained(folder, device_map=device_map), model, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_from_pretrained_converts(saved, dtype):
    model, folder = saved
    loaded = type(model).from_pretrained(folder, device_map="spyre", dtype=dtype)
    check_loaded(loaded, model, dtype)


def test_a_model_moves_to_the_card_as_a_whole(saved):
    model, folder = saved
    check_loaded(type(model).from_pretrained(folder).to("spyre"), model, torch.bfloat16)


@pytest.mark.parametrize("max_memory", [None, {0: "1GB"}], ids=str)
def test_auto_is_the_card_if_the_model_fits(saved, max_memory):
    model, folder = saved
    loaded = type(model).from_pretrained(folder, device_map="auto", max_memory=max_memory)
    check_loaded(loaded, model, torch.bfloat16)


def test_auto_is_the_cpu_if_it_is_all_that_is_given(saved):
    model, folder = saved
    loaded = type(model).from_pretrained(folder, device_map="auto", max_memory={"cpu": "1GB"})
    assert loaded.device.type == "cpu"


@pytest.mark.slow
def test_auto_divides_a_model_among_cards(saved, check_python):
    model, folder = saved
    script = f"""
        import torch
        from transformers import LlamaForCausalLM
        model = LlamaForCausalLM.from_pretrained({str(folder)!r}, device_map="auto")
        print(*sorted(map(str, {{p.device for p in model.parameters()}})))
        logits = model(torch.arange(3, 12, device=model.device)[None]).logits
        torch.save(logits.detach().cpu(), {str(folder / "logits")!r})
        """
    assert check_python(script, AIU_WORLD_SIZE="2").stdout == "spyre:0 spyre:1\n"
    wanted = model(torch.arange(3, 12)[None]).logits
    found = torch.load(folder / "logits")
    assert (found - wanted).norm() < 0.01 * wanted.norm()


def test_save_pretrained_writes_what_was_loaded(saved, tmp_path):
    model, folder = saved
    type(model).from_pretrained(folder, device_map="spyre").save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert back.dtype == torch.bfloat16
    for name, value in model.state_dict().items():
        assert same(back.state_dict()[name], value), name
    assert (
        back.lm_head.weight is back.model.embed_tokens.weight
    ) == back.config.tie_word_embeddings


def test_parameters_that_the_checkpoint_lacks_are_initialised_on_the_card(tmp_path):
    sizes = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "bos_token_id")}
    hf.BertModel(hf.BertConfig(**sizes)).save_pretrained(tmp_path)
    torch.spyre.reset_fallback_stats()
    classifier = hf.BertForSequenceClassification.from_pretrained(tmp_path, device_map="spyre")
    assert {p.device.type for p in classifier.parameters()} == {"spyre"}
    assert 0.01 < classifier.classifier.weight.detach().cpu().std() < 0.04
    assert not torch.spyre.fallback_stats()


# ---- State dicts --------------------------------------------------------------------------------


def test_a_state_dict_survives_torch_save_in_both_directions(saved):
    model, folder = saved
    loaded = type(model).from_pretrained(folder, device_map="spyre")
    for source, target in ((loaded, "cpu"), (model, "spyre")):
        buffer = io.BytesIO()
        torch.save(source.state_dict(), buffer)
        buffer.seek(0)
        state = torch.load(buffer, map_location=target)
        for name, value in model.state_dict().items():
            assert state[name].device.type == target and same(state[name], value), name
        assert len({v.data_ptr() for v in state.values()}) == len(
            {v.data_ptr() for v in model.state_dict().values()}
        )


def test_a_loaded_state_dict_can_be_assigned(saved):
    model, folder = saved
    state = torch_spyre.load_safetensors(folder)
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch_spyre.empty_weights():
        fresh = type(model)(model.config)
    fresh.load_state_dict(state, assign=True)
    fresh.tie_weights()
    check_loaded(fresh.to("spyre"), model, torch.bfloat16)


def test_float16_keeps_nine_of_its_ten_bits_and_a_second_trip_changes_nothing():
    weight = torch.randn(300, 300).half()
    once = weight.to("spyre").cpu()
    assert not torch.equal(once, weight)
    assert ((once.float() - weight.float()).abs() <= weight.float().abs() * 2.0**-10).all()
    assert same(once.to("spyre"), once)


# ---- load_safetensors ---------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["directory", "index", "file"])
def test_a_checkpoint_is_a_directory_an_index_or_a_file(saved, spelling, tmp_path):
    model, folder = saved
    path = {"directory": folder, "index": folder / "model.safetensors.index.json"}.get(spelling)
    if path is None:
        path = tmp_path / "weights.safetensors"
        safetensors.torch.save_model(model, str(path))
    state = torch_spyre.load_safetensors(path)
    assert len(state) == len(list(model.parameters()))  # a tied weight once, under one name
    for name, value in state.items():
        assert value.is_spyre and same(value, model.state_dict()[name]), name


def test_dtype_converts_floats_and_nothing_else(tmp_path):
    stored = {
        "weight": torch.randn(70, 30).bfloat16(),
        "double": torch.randn(5, dtype=torch.float64),
        "quantised": torch.randn(70, 30).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(3.0),
        "steps": torch.tensor([7, 8]),
        "nothing": torch.empty(0, 4),
    }
    safetensors.torch.save_file(stored, tmp_path / "model.safetensors")
    state = torch_spyre.load_safetensors(tmp_path, dtype=torch.float16)
    dtypes = {name: value.dtype for name, value in state.items()}
    assert dtypes == {
        **dict.fromkeys(("weight", "double", "scalar", "nothing"), torch.float16),
        "quantised": torch.float8_e4m3fn,
        "steps": torch.int64,
    }
    for name, value in state.items():
        expected = stored[name].to(value.dtype).to("spyre").cpu()
        assert value.shape == expected.shape
        assert torch.equal(value.cpu().float(), expected.float()), name


def test_a_layout_can_be_chosen_by_name(tmp_path):
    weight = torch.randn(300, 200).half()
    safetensors.torch.save_file({"a": weight, "b": weight + 1}, tmp_path / "model.safetensors")
    layout = _C.SpyreTensorLayout([300, 200], [200, 1], torch.float16, [1, 0])
    state = torch_spyre.load_safetensors(tmp_path, layouts={"a": layout})
    assert state["a"].device_tensor_layout() == layout != state["b"].device_tensor_layout()
    assert torch.equal(state["a"].cpu(), weight.to("spyre").cpu())
    with pytest.raises(ValueError, match="tensors that there are not: c"):
        torch_spyre.load_safetensors(tmp_path, layouts={"c": layout})


def test_safetensors_writes_from_the_card(net, tmp_path):
    """Into its files, with ties; to read them to a device, it has to know that device."""
    model, _ = net
    on_card = Net().to("spyre").eval()
    on_card.load_state_dict(model.state_dict())
    safetensors.torch.save_model(on_card, str(tmp_path / "whole.safetensors"))
    safetensors.torch.save_file({"a": on_card.out.weight}, tmp_path / "one.safetensors")
    back = Net()
    safetensors.torch.load_model(back, str(tmp_path / "whole.safetensors"))
    assert all(same(v, model.state_dict()[n]) for n, v in back.state_dict().items())
    assert same(safetensors.torch.load_file(tmp_path / "one.safetensors")["a"], model.out.weight)
    with pytest.raises(safetensors.SafetensorError, match="spyre"):
        safetensors.torch.load_file(tmp_path / "one.safetensors", device="spyre")


# ---- load_model ---------------------------------------------------------------------------------


class Net(nn.Module):
    """A tied table, linear layers, buffers in a checkpoint and one that is computed."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.hidden = nn.Linear(64, width)
        self.out = nn.Linear(width, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.table.weight
        self.norm = nn.BatchNorm1d(64)
        self.register_buffer("scale", torch.linspace(0, 1, 64), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) * self.scale
        return self.head(self.norm(self.out(self.hidden(x).relu())))


@pytest.fixture
def net(tmp_path) -> tuple[Net, Path]:
    torch.manual_seed(0)
    net, path = Net().eval(), tmp_path / "net.safetensors"
    net.norm.running_mean.normal_()
    safetensors.torch.save_model(net, str(path))
    return net, path


def empty_net(width: int = 96) -> Net:
    with torch_spyre.empty_weights():
        return Net(width).eval()


def test_a_module_without_memory_is_filled_on_the_card(net):
    model, path = net
    loaded = empty_net()
    assert torch_spyre.load_model(loaded, path) == ([], [])
    assert {t.device.type for t in (*loaded.parameters(), *loaded.buffers())} == {"spyre"}
    assert loaded.head.weight is loaded.table.weight
    assert [name for name, _ in loaded.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in loaded.parameters())
    assert all(same(v, model.state_dict()[n]) for n, v in loaded.state_dict().items())
    tokens = torch.arange(50)
    with torch.no_grad():
        found, wanted = loaded(tokens.to("spyre")).cpu(), model(tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch) -> Callable[[Callable[[], object]], list[str]]:
    """What a terminal shows while something is loaded, one drawing after the other."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TORCH_SPYRE_PROGRESS", "1")

    def show(load: Callable[[], object]) -> list[str]:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        load()
        assert sys.stderr is terminal
        return terminal.getvalue().split("\r\x1b[2K")

    return show


@pytest.mark.parametrize("has_both_names", [False, True], ids=["tied once", "tied twice"])
def test_the_bar_of_a_module_reaches_its_total(shown, tmp_path, has_both_names):
    net, path = Net(), tmp_path / "net.safetensors"
    net.table = nn.Embedding(5000, 64)  # most of the bytes
    net.head.weight = net.table.weight
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    if not has_both_names:
        del state["head.weight"]
    safetensors.torch.save_file(state, path)
    *_, last, after = shown(lambda: torch_spyre.load_model(net, path))
    # The table with its head, four of the linear layers, five of the norm, and what is computed.
    size = f"{sum(tensor.nbytes for tensor in state.values()) / 1e6:.1f}"
    assert f"Loading {'━' * 24} 11/11 tensors  {size}/{size} MB" in last and after == ""


def test_the_bar_of_a_state_dict_reaches_its_total(shown, tmp_path):
    path = tmp_path / "five.safetensors"
    safetensors.torch.save_file({f"{i}": torch.zeros(1000, 100 * i) for i in range(1, 6)}, path)
    *_, last, after = shown(lambda: torch_spyre.load_safetensors(path))
    assert f"Loading {'━' * 24} 5/5 tensors  6.0/6.0 MB" in last and after == ""


def test_loading_is_silent_where_progress_is_not_wanted(shown, net):
    _, path = net
    assert shown(lambda: torch_spyre.load_model(empty_net(), path, progress=False)) == [""]
    assert shown(lambda: torch_spyre.load_safetensors(path, progress=False)) == [""]


def test_empty_weights_take_no_memory_and_keep_ties():
    with torch_spyre.empty_weights():
        first, second = Net(), nn.Linear(64, 50)
        shared = nn.Parameter(torch.zeros(50, 64), requires_grad=False)
        second.weight = shared
        third = nn.Embedding(50, 64)
        third.weight = shared
    assert all(p.is_meta for p in (*first.parameters(), *second.parameters()))
    assert first.head.weight is first.table.weight and second.weight is third.weight
    assert not second.weight.requires_grad and second.bias.requires_grad
    assert first.scale.device.type == "cpu" and first.scale[-1] == 1
    assert not Net().hidden.weight.is_meta  # afterwards all is as before


def test_weights_come_in_the_layout_of_their_use(net):
    loaded = empty_net()
    torch_spyre.load_model(loaded, net[1], dtype=torch.float16)
    default = torch.zeros_like(loaded.out.weight).device_tensor_layout()
    best = _C.SpyreTensorLayout([64, 96], [96, 1], torch.float16, [1, 0])
    assert loaded.out.weight.device_tensor_layout() == best != default
    table = loaded.table.weight  # its rows are looked up
    assert table.device_tensor_layout() == torch.zeros_like(table).device_tensor_layout()
    x = torch.randn(3, 96).half().to("spyre")
    with torch.no_grad():
        plans = plans_of(lambda: nn.functional.linear(x, loaded.out.weight))
    assert [plan.launches for plan in plans] == [(("batchmatmul",),)]


def test_what_is_real_keeps_its_identity(net):
    """Its optimiser may know it; its old values are gone."""
    model, path = net
    other = Net().eval().half()
    before = dict(other.named_parameters())
    torch_spyre.load_model(other, path)
    assert all(parameter is before[name] for name, parameter in other.named_parameters())
    assert other.head.weight is other.table.weight
    assert same(other.hidden.bias, model.hidden.bias.half().to("spyre"))
    torch_spyre.load_model(other, path, dtype=torch.float32)  # from card to card
    assert all(parameter is before[name] for name, parameter in other.named_parameters())
    assert same(other.hidden.weight, model.hidden.weight)


def test_dtype_says_whose_format_counts(net):
    for dtype, expected in ((None, torch.float32), (torch.float16,) * 2, ("auto", torch.bfloat16)):
        state = {n: v.bfloat16() for n, v in safetensors.torch.load_file(net[1]).items()}
        path = net[1].parent / "bfloat16.safetensors"
        safetensors.torch.save_file(state, path)
        loaded = empty_net()
        torch_spyre.load_model(loaded, path, dtype=dtype)
        assert {p.dtype for p in loaded.parameters()} == {expected}
        assert loaded.scale.dtype == torch.float32  # computed, not loaded
    with pytest.raises(ValueError, match="floating-point"):
        torch_spyre.load_model(empty_net(), net[1], dtype=torch.int8)


def test_a_lazy_module_takes_its_shape_from_the_file(tmp_path):
    layer = nn.Linear(5, 7)
    safetensors.torch.save_file(layer.state_dict(), tmp_path / "model.safetensors")
    with torch_spyre.empty_weights():
        lazy = nn.LazyLinear(7)
    torch_spyre.load_model(lazy, tmp_path)
    x = torch.randn(2, 5)
    with torch.no_grad():
        torch.testing.assert_close(lazy(x.to("spyre")).cpu(), layer(x), rtol=1e-5, atol=1e-5)


def test_strict_false_returns_what_does_not_match(net):
    model, path = net
    state = {n: v for n, v in model.state_dict().items() if n not in ("out.bias", "table.weight")}
    safetensors.torch.save_file({**state, "more": torch.ones(3)}, path)
    loaded = Net().eval()
    result = torch_spyre.load_model(loaded, path, strict=False)
    assert result.missing_keys == ["out.bias"] and result.unexpected_keys == ["more"]
    assert loaded.out.bias.is_spyre  # as it was, but where the others are
    assert same(loaded.table.weight, model.table.weight)  # under its other name
    empty = empty_net()
    assert torch_spyre.load_model(empty, path, strict=False).missing_keys == ["out.bias"]
    assert empty.out.bias.is_meta and empty.out.weight.is_spyre


# ---- What can go wrong --------------------------------------------------------------------------


def test_a_checkpoint_of_another_module_leaves_the_module_as_it_was(net):
    for module, problem in ((Net(width=32), "size mismatch"), (nn.Linear(3, 4), "Missing key")):
        before = {name: id(p) for name, p in module.named_parameters()}
        with pytest.raises(torch_spyre.CheckpointError, match=problem) as caught:
            torch_spyre.load_model(module, net[1])
        assert str(net[1]) in str(caught.value) and "strict=False" in str(caught.value)
        assert {name: id(p) for name, p in module.named_parameters()} == before
        assert all(p.device.type == "cpu" for p in module.parameters())


def test_tied_weights_that_differ_are_not_guessed_about(net):
    state = net[0].state_dict()
    state["head.weight"] = state["head.weight"] + 1
    safetensors.torch.save_file(state, net[1])
    with pytest.raises(torch_spyre.CheckpointError, match="one weight of the module and two"):
        torch_spyre.load_model(empty_net(), net[1])


def test_buffers_that_nobody_computed_are_named(net):
    with torch.device("meta"):
        module = Net()
    with pytest.raises(torch_spyre.CheckpointError, match="(?s)scale.*empty_weights"):
        torch_spyre.load_model(module, net[1])
    torch_spyre.load_model(module, net[1], strict=False)
    assert module.scale.is_meta and module.hidden.weight.is_spyre


def test_a_dtype_that_the_card_lacks_is_named_with_its_tensor(tmp_path):
    path = tmp_path / "double.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2, 2, dtype=torch.float64)}, path)
    with pytest.raises(torch_spyre.CheckpointError) as caught:
        torch_spyre.load_safetensors(path)
    message = str(caught.value)
    assert "'weight' would be torch.float64" in message and str(path) in message
    assert "try dtype=torch.float32" in message
    assert torch_spyre.load_safetensors(path, dtype=torch.float32)["weight"].dtype == torch.float32


def test_an_error_of_the_device_names_the_tensor(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"steps": torch.tensor([2**40])}, path)
    with pytest.raises(OverflowError) as caught:
        torch_spyre.load_safetensors(path)
    assert caught.value.__notes__ == [f"while 'steps' was loaded from {path}"]


def damaged(net: tuple[Net, Path]) -> dict[str, tuple[bytes, str]]:
    content = net[1].read_bytes()
    buffer = io.BytesIO()
    torch.save(net[0].state_dict(), buffer)
    return {
        "cut in the tensors": (content[: len(content) // 2], "truncated"),
        "cut in the header": (content[:30], "truncated"),
        "empty": (b"", "it has 0 bytes"),
        "of torch.save": (buffer.getvalue(), "torch.load"),
        "of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "lfs pull"),
        "of GGUF": (b"GGUF" + bytes(100), "gguf_file"),
        "of somebody else": (b"once upon a time" * 9, "begins with b'once upo'"),
        "too long": (content + b"more", "not fully covered"),
        "damaged": (content[:8] + b"?" + content[9:], "header"),
    }


def test_a_file_that_can_not_be_read_says_why(net):
    for name, (content, reason) in damaged(net).items():
        path = net[1].parent / "damaged.safetensors"
        path.write_bytes(content)
        with pytest.raises(torch_spyre.CheckpointError) as caught:
            torch_spyre.load_safetensors(path)
        assert reason in str(caught.value) and str(path) in str(caught.value), name


def test_a_path_that_leads_nowhere_says_so(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*from_pretrained"):
        torch_spyre.load_safetensors("somebody/some-model")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"holds pytorch_model.bin; .*torch.load"):
        torch_spyre.load_safetensors(tmp_path)
    for name in ("a", "b"):
        safetensors.torch.save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(torch_spyre.CheckpointError, match=r"a.safetensors, b.safetensors"):
        torch_spyre.load_safetensors(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert torch_spyre.load_safetensors(tmp_path).keys() == {"a"}


def test_an_index_that_does_not_hold_says_so(saved, tmp_path):
    folder = shutil.copytree(saved[1], tmp_path / "copy")
    index = folder / "model.safetensors.index.json"
    missing = sorted(folder.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(FileNotFoundError, match=f"1 are not there: {missing.name}"):
        torch_spyre.load_safetensors(folder)
    for text in ("{", json.dumps({"weights": {}}), json.dumps([1])):
        index.write_text(text)
        with pytest.raises(torch_spyre.CheckpointError, match="weight_map"):
            torch_spyre.load_safetensors(folder)


def test_safetensors_is_an_extra(check_python, net):
    check_python(
        f"""
        import sys
        import torch_spyre
        assert torch_spyre.load_safetensors and "safetensors" not in sys.modules
        sys.modules["safetensors"] = None
        try:
            torch_spyre.load_safetensors({str(net[1])!r})
        except ImportError as error:
            assert "pip install torch-spyre[models]" in str(error)
        else:
            raise AssertionError
        """
    )


# ---- Memory -------------------------------------------------------------------------------------

# In a process of its own: memory that somebody has freed would hide what is taken.
MEMORY = """
import sys, torch
import transformers as hf
import torch_spyre
from torch_spyre.tools.host_memory import measure_host_memory

hf.utils.logging.disable_progress_bar()
folder = {folder!r}
config, Model = hf.AutoConfig.from_pretrained(folder), hf.LlamaForCausalLM

def filled():
    with torch_spyre.empty_weights():
        model = Model(config)
    torch_spyre.load_model(model, folder, dtype=dtype)
    return model

def mapped():
    return Model.from_pretrained(folder, device_map="spyre", dtype=dtype)

def moved():
    return cpu.to("spyre")

torch.ones(4, device="spyre") + 1
for dtype in (torch.float16, torch.bfloat16):
    for work in (filled, mapped):
        model, memory = measure_host_memory(work)
        print(work.__name__, dtype, memory, f"{{memory.ratio:.3f}}", file=sys.stderr)
        print(memory.ratio)
        del model
cpu = Model(config)
_, memory = measure_host_memory(moved)
print("moved", memory, f"{{memory.ratio:.3f}}", file=sys.stderr)
print(memory.ratio)
"""


def test_loading_takes_little_of_the_host_beyond_the_card(check_python, tmp_path):
    """The promise is 1.2 times the model; a few tensors is what it takes."""
    sizes = {"vocab_size": 4000, "hidden_size": 768, "intermediate_size": 2048}
    shape = {"num_hidden_layers": 5, "num_attention_heads": 12, "num_key_value_heads": 12}
    config = hf.LlamaConfig(**{**SIZES, **sizes, **shape})
    hf.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    # Checked mode's shadow of the card's memory is memory of the host.
    done = check_python(MEMORY.format(folder=str(tmp_path)), SPYRE_CARD_CHECK="0")
    print(done.stderr)
    *loads, move = map(float, done.stdout.split())
    assert len(loads) == 4 and max(loads) < 0.25, done.stderr
    assert move < 0.1, done.stderr  # the model shrinks on the host as it grows on the card
