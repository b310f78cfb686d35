"""Explanations made by hand: what the page and the text are tested with, without a compiler.

`small()` has one of everything: two graphs, a break, a fallback, spills, copies, an eager operation
and a kernel that is not launched. `decoder(layers)` is a language model whose layers are calls of
the same kernel. The figures follow the card's limits, so that they look like real ones.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

import msgspec

from torch_spyre.tools.explain.document import (
    VERSION,
    Break,
    Buffer,
    Call,
    Card,
    Explanation,
    Graph,
    Kernel,
    Launch,
    Source,
    Step,
    Units,
)

CARD = Card(cores=32, macs_per_ns=36480.0, bytes_per_ns=150.0, lx_bytes=2 << 20)
CAPACITY = 1_625_344
CODE = {
    12: "return x.exp()",
    62: "variance = hidden_states.pow(2).mean(-1, keepdim=True)",
    63: "return self.weight * hidden_states * torch.rsqrt(variance + self.eps)",
    97: "q_embed = (q * cos) + (rotate_half(q) * sin)",
    98: "k_embed = (k * cos) + (rotate_half(k) * sin)",
    141: "q = self.q_proj(hidden_states)",
    142: "k = self.k_proj(hidden_states)",
    143: "v = self.v_proj(hidden_states)",
    160: "scores = q @ k.transpose(2, 3)",
    164: "weights = softmax(scores * self.scaling + mask, dim=-1)",
    166: "context = weights @ v",
    168: "context = context.transpose(1, 2).reshape(*shape, -1)",
    170: "return self.o_proj(context)",
    188: "down = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))",
    214: "hidden_states = residual + hidden_states",
    220: "hidden_states = residual + hidden_states",
    402: "logits = self.lm_head(hidden_states[:, -1:, :])",
}
ENVIRONMENT = {"torch": "2.13.0", "torch_spyre": "0.1.0", "DXP_LX_FRAC_AVAIL": "0.2"}


@dataclass
class KernelBuilder:
    """Adds steps one by one; finds lives, addresses and times by itself."""

    name: str
    file: str = "granite/modeling.py"
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    arguments: int = 0

    def tensor(self, name: str, shape: tuple[int, ...], component: str, why: str = "") -> None:
        """A tensor of float16, its last dimension in sticks of 64."""
        *outer, last = shape
        size = (math.ceil(last / 64), *outer, 64)
        address, nbytes = 0, 2 * math.prod(size)
        if component == "argument":
            address, self.arguments = self.arguments, self.arguments + 1
            why = "it enters or leaves the graph"
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(outer)))
        self.buffers[name] = Buffer(
            name=name,
            dtype="float16",
            shape=shape,
            device_size=size,
            stride_map=(64, *strides, 1),
            component=component,
            address=address,
            nbytes=math.ceil(nbytes / CARD.cores) if component == "lx" else nbytes,
            first=0,
            last=0,
            why_not_lx=why,
        )

    def step(
        self,
        op: str,
        reads: str,
        writes: str,
        line: int,
        *,
        kind: str = "pointwise",
        module: str = "layer",
        k: int = 0,
        cores: int = 32,
        loops: tuple[int, ...] = (),
        why: str = "",
    ) -> None:
        """`k`: the length that a product sums over."""
        places = list(self.buffers)
        read = [self.buffers[name] for name in reads.split()]
        written = self.buffers[writes]
        bytes_read = sum(b.nbytes for b in read if b.component != "lx")
        bytes_written = written.nbytes if written.component != "lx" else 0
        macs = math.prod(written.shape) * k
        elements = math.prod(written.device_size)
        units = Units(
            pt=macs / CARD.macs_per_ns,
            sfp=0.0 if k else elements / cores / 4,
            memory=(bytes_read + bytes_written) / CARD.bytes_per_ns,
            lx=sum(b.nbytes for b in (*read, written) if b.component == "lx") / 128,
            ring=elements / 600 if kind == "relayout" else 0.0,
        )
        times = {"PT": units.pt, "SFP": units.sfp, "LPDDR5": units.memory, "LX": units.lx}
        bound = max(times, key=times.__getitem__) if not units.ring else "ring"
        start = self.steps[-1].start + self.steps[-1].duration if self.steps else 0
        self.steps.append(
            Step(
                op=op,
                kind=kind,
                start=start,
                duration=max(20, math.ceil(max(times.values()) + units.ring)),
                visits=math.prod(loops),
                loops=loops,
                cores=cores,
                slices={"c0": cores, "c1": 1},
                bound=bound,
                units=units,
                macs=macs,
                bytes_read=bytes_read,
                bytes_written=bytes_written,
                reads=tuple(places.index(name) for name in reads.split()),
                writes=places.index(writes),
                source=Source(self.file, line, "forward", CODE[line], f"aten.{op}.default", module),
                why=why,
                loop_ir=f"{writes}[i0, i1] = {op}({', '.join(reads.split())})",
                spec=spec_text(op, kind, cores, [*read, written]),
                sdsc=sdsc_text(op, cores, written),
            )
        )

    def finish(self) -> Kernel:
        lives = {name: self._life(place) for place, name in enumerate(self.buffers)}
        for name, (first, last) in lives.items():
            self.buffers[name] = msgspec.structs.replace(self.buffers[name], first=first, last=last)
        top = self._pack()
        in_pool = [b.nbytes for b in self.buffers.values() if b.component == "pool"]
        return Kernel(
            name=self.name,
            hash=f"{sum(map(ord, self.name)):08x}" * 8,
            duration=sum(step.duration for step in self.steps),
            cores=CARD.cores,
            lx_bytes=top,
            lx_capacity=CAPACITY,
            pool_bytes=sum(in_pool),
            arguments=self.arguments,
            buffers=tuple(self.buffers.values()),
            steps=tuple(self.steps),
            mlir=f"module {{\n  func.func @{self.name}() {{\n    return\n  }}\n}}\n",
        )

    def _life(self, place: int) -> tuple[int, int]:
        used = [
            i for i, step in enumerate(self.steps) if place in step.reads or place == step.writes
        ]
        return (used[0], used[-1]) if used else (0, 0)

    def _pack(self) -> int:
        """Addresses in LX: each tensor at the lowest place that is free for its life."""
        placed: list[Buffer] = []
        for name, buffer in self.buffers.items():
            if buffer.component != "lx":
                continue
            rivals = [b for b in placed if b.first <= buffer.last and buffer.first <= b.last]
            ends = [0, *(b.address + b.nbytes for b in rivals)]
            free = (
                end
                for end in sorted(ends)
                if all(
                    end + buffer.nbytes <= b.address or b.address + b.nbytes <= end for b in rivals
                )
            )
            self.buffers[name] = msgspec.structs.replace(buffer, address=next(free))
            placed.append(self.buffers[name])
        return max((b.address + b.nbytes for b in placed), default=0)


def spec_text(op: str, kind: str, cores: int, tensors: list[Buffer]) -> str:
    lines = [f'OpSpec(op="{op}", kind="{kind}",']
    lines.append(f"       iteration_space={{c0: (128, {cores}), c1: (2048, 1)}},")
    lines.append("       args=[")
    for tensor in tensors:
        sizes = list(tensor.device_size)
        place = "lx" if tensor.component == "lx" else "hbm"
        lines.append(
            f"         TensorArg(device_size={sizes}, allocation={{{place}: {tensor.address}}}),"
        )
    return "\n".join(lines) + "])"


def sdsc_text(op: str, cores: int, written: Buffer) -> str:
    slices = {str(core): {"c0": core} for core in range(cores)}
    dsc = {"N_": {"name_": "n", "c0_": 128}, "labeledDs_": [{"dsName_": written.name}]}
    found = {"numCoresUsed_": cores, "coreIdToWkSlice_": slices, "dscs_": [dsc]}
    return json.dumps({op: found}, separators=(",", ":"))


def decoder_layer(hidden: int = 2048, tokens: int = 128, heads: int = 32) -> Kernel:
    """A layer of a language model: norm, attention, norm, MLP."""
    made = KernelBuilder("spyre_decoder_layer_0")
    inner = 4 * hidden
    x, wide = (tokens, hidden), (tokens, inner)
    made.tensor("arg0_1", x, "argument")
    for name in ("arg1_1", "arg2_1", "arg3_1", "arg4_1"):
        made.tensor(name, (hidden, hidden), "argument")
    made.tensor("arg5_1", (hidden, inner), "argument")
    made.tensor("arg6_1", (inner, hidden), "argument")
    made.tensor("arg7_1", (tokens, hidden // heads), "argument")
    for name in ["tmp0", "q", "k", "v", "qrot", "krot", "context", "moved", "attn", "res1", "down"]:
        made.tensor(name, x, "lx")
    for name in ("gate", "silu", "prod"):
        made.tensor(name, wide, "lx")
    made.tensor("up", wide, "pool", "it does not fit beside what saves more traffic")
    made.tensor("buf30", x, "argument")

    made.step("identity", "arg0_1", "tmp0", 62, why="2 operations read it: from LPDDR5 once")
    add_norm(made, "tmp0", "norm", x, "layer.input_layernorm")
    add_attention(made, hidden, tokens, heads)
    made.step("add", "tmp0 attn", "res1", 214)
    add_norm(made, "res1", "norm2", x, "layer.post_attention_layernorm")
    product = {"kind": "matmul", "k": hidden, "loops": (4,)}
    made.step("batchmatmul", "norm2 arg5_1", "gate", 188, module="layer.mlp.gate_proj", **product)
    made.step("batchmatmul", "norm2 arg5_1", "up", 188, module="layer.mlp.up_proj", **product)
    made.step("silu", "gate", "silu", 188, module="layer.mlp")
    made.step("mul", "silu up", "prod", 188, module="layer.mlp")
    product = {"kind": "matmul", "k": inner}
    made.step("batchmatmul", "prod arg6_1", "down", 188, module="layer.mlp.down_proj", **product)
    made.step("add", "res1 down", "buf30", 220, cores=24)
    return made.finish()


def add_norm(
    made: KernelBuilder, source: str, result: str, shape: tuple[int, int], module: str
) -> None:
    squares, mean, root = (f"{result}_{name}" for name in ("squares", "mean", "root"))
    made.tensor(squares, shape, "lx")
    made.tensor(mean, (shape[0], 1), "lx")
    made.tensor(root, (shape[0], 1), "lx")
    made.tensor(result, shape, "lx")
    made.step("mul", f"{source} {source}", squares, 62, module=module)
    made.step("mean", squares, mean, 62, module=module, kind="reduction")
    made.step("rsqrt", mean, root, 63, module=module)
    made.step("mul", f"{source} {root}", result, 63, module=module)


def add_attention(made: KernelBuilder, hidden: int, tokens: int, heads: int) -> None:
    module = "layer.self_attn"
    scores, rows = (heads, tokens, tokens), (heads, tokens, 1)
    why = "it is written element by element (restickify)"
    made.tensor("ksticks", (tokens, hidden), "pool", why)
    for name, shape in (("scores", scores), ("max", rows), ("exp", scores), ("sum", rows)):
        made.tensor(name, shape, "lx")
    made.tensor("weights", scores, "lx")
    for line, name, weight in ((141, "q", "arg1_1"), (142, "k", "arg2_1"), (143, "v", "arg3_1")):
        product = {"kind": "matmul", "k": hidden, "module": f"{module}.{name}_proj"}
        made.step("batchmatmul", f"norm {weight}", name, line, **product)
    made.step("mul", "q arg7_1", "qrot", 97, module=module)
    made.step("mul", "k arg7_1", "krot", 98, module=module)
    why = "batchmatmul reads krot with its sticks along dimension 1, and it has them along 2"
    made.step("restickify", "krot", "ksticks", 160, kind="restickify", module=module, why=why)
    product = {"kind": "matmul", "module": module}
    made.step("batchmatmul", "qrot ksticks", "scores", 160, k=hidden // heads, **product)
    made.step("max", "scores", "max", 164, kind="reduction", module=module)
    made.step("exp_sub", "scores max", "exp", 164, module=module)
    made.step("sum", "exp", "sum", 164, kind="reduction", module=module)
    made.step("div", "exp sum", "weights", 164, module=module)
    made.step("batchmatmul", "weights v", "context", 166, k=tokens, **product)
    why = "the cores that read context are not those that wrote it"
    made.step("relayout", "context", "moved", 168, kind="relayout", module=module, why=why)
    product = {"kind": "matmul", "module": f"{module}.o_proj", "k": hidden}
    made.step("batchmatmul", "moved arg4_1", "attn", 170, **product)


def head_kernel(hidden: int = 2048, vocabulary: int = 49152) -> Kernel:
    made = KernelBuilder("spyre_lm_head_1")
    made.tensor("arg0_1", (1, hidden), "argument")
    made.tensor("arg1_1", (hidden, vocabulary), "argument")
    made.tensor("buf0", (1, vocabulary), "argument")
    product = {"kind": "matmul", "module": "lm_head", "k": hidden}
    made.step("batchmatmul", "arg0_1 arg1_1", "buf0", 402, **product)
    return made.finish()


def layers_of(kernel: Kernel, prefix: str) -> tuple[str, ...]:
    """A call's layers: the kernel's own, with another first part."""
    return tuple(step.source.layer.replace("layer", prefix, 1) for step in kernel.steps)


@dataclass
class Clock:
    """Puts launches on their queues, one after the other."""

    now: int = 0
    launches: list[Launch] = field(default_factory=list)

    def kernel(self, kernel: Kernel, call: tuple[int, int], queue: int = 0) -> None:
        steps = kernel.steps
        read = sum(step.bytes_read for step in steps)
        written = sum(step.bytes_written for step in steps)
        self._add(kernel.name, "kernel", queue, kernel.duration, read, written, call)

    def other(self, name: str, kind: str, nbytes: int, queue: int = 0) -> None:
        duration = math.ceil(nbytes / 24) + 1500
        if kind != "kernel":
            self._add(name, kind, queue, duration, nbytes, 0, None, bound="PCIe")
            return
        units = Units(*map(float, (0, duration / 8, duration, duration / 4, 0)))
        more = {"bound": "LPDDR5", "cores": CARD.cores // 2, "units": units}
        self._add(name, kind, queue, duration, nbytes, nbytes, None, **more)

    def _add(
        self,
        name: str,
        kind: str,
        queue: int,
        duration: int,
        read: int,
        written: int,
        call: tuple[int, int] | None,
        **more: object,
    ) -> None:
        launch = Launch(name, kind, 0, queue, self.now, duration, read, written, call, **more)
        self.launches.append(launch)
        self.now += duration + 400  # until the host has asked for the next one


FX = """graph():
    %arg0_1 : [num_users=2] = placeholder[target=arg0_1]
    %mm : [num_users=1] = call_function[target=torch.ops.aten.mm.default](args = (%arg0_1,))
    return (mm,)
"""
LOOPS = "buf0[i0] = sum(arg0_1[100*i0 + i1])  over 8 x 100, reduced i1\n"


def graph(name: str, why: str, calls: list[Call], **more: object) -> Graph:
    source = Source("granite/modeling.py", 380, "forward", "outputs = self.model(**inputs)")
    fields = {
        "fx": FX,
        "captured": {"linear": 7, "matmul": 2, "softmax": 1},
        "decomposed": {"aten.mm.default": 7, "aten.bmm.default": 2, "aten._softmax.default": 1},
        "loops": LOOPS,
    }
    return Graph(name=name, why=why, source=source, calls=tuple(calls), **{**fields, **more})


def decoder(layers: int = 40, tokens: int = 128) -> Explanation:
    """A language model of equal layers: one kernel, called once per layer."""
    layer, head = decoder_layer(tokens=tokens), head_kernel()
    calls = [Call(0, "", layers_of(layer, f"model.layers.{i}")) for i in range(layers)]
    calls.append(Call(1, "", ("lm_head",)))
    clock = Clock()
    clock.other("Memcpy HtoD", "to card", 8 * tokens)
    for place, call in enumerate(calls):
        clock.kernel((layer, head)[call.kernel], (0, place))
    clock.other("Memcpy DtoH", "to host", 2 * 49152)
    return Explanation(
        version=VERSION,
        title="GraniteForCausalLM",
        inputs=(f"input_ids: int64[1, {tokens}]", f"attention_mask: int64[1, {tokens}]"),
        environment=ENVIRONMENT,
        card=CARD,
        duration=clock.now,
        graphs=(graph("graph 0", "the first", calls, fx=FX * 25 * layers),),
        breaks=(),
        fallbacks={},
        kernels=(layer, head),
        launches=tuple(clock.launches),
    )


def small() -> Explanation:
    """Three layers, and one of everything that can happen to a model."""
    whole = decoder(3)
    layer, head = whole.kernels
    other = replace(KernelBuilder("spyre_other_length_2"), file="granite/cache.py")
    other.tensor("arg0_1", (64, 64), "argument")
    other.tensor("buf0", (64, 64), "argument")
    other.step("exp", "arg0_1", "buf0", 12, module="model.cache", cores=8)
    calls = [*whole.graphs[0].calls, Call(None, "CPU: aten.linalg_qr", ())]
    rest = [Call(2, "", ("model.cache",)), Call(None, "aten.sort", ())]
    breaking = Source("granite/modeling.py", 391, "forward", "print(hidden_states.norm())")
    clock = Clock()
    clock.other("Memcpy HtoD", "to card", 1024, queue=1)
    for place in range(4):
        clock.kernel((layer, head)[place == 3], (0, place))
    clock.other("aten::add.Tensor", "kernel", 1 << 20)
    clock.other("Memcpy DtoH", "to host", 98304, queue=1)
    return msgspec.structs.replace(
        whole,
        graphs=(
            graph("graph 0", "the first", calls),
            graph("graph 1", "after the graph break in modeling.py:391", rest),
        ),
        breaks=(Break("print: a call of a builtin that Dynamo does not trace", breaking),),
        fallbacks={"aten::linalg_qr": 2},
        kernels=(layer, head, other.finish()),
        duration=clock.now,
        launches=tuple(clock.launches),
    )


def place_of(kernel: Kernel, op: str, writes: str = "") -> int:
    """Where in a kernel a step stands: the first of an operation, or that which writes a tensor."""
    for place, step in enumerate(kernel.steps):
        if step.op == op and writes in ("", kernel.buffers[step.writes].name):
            return place
    raise AssertionError(f"{kernel.name} has no {op}")
