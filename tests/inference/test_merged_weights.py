"""One merge of adapters: what is sampled and published, and a base that no push changes."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from miner.inference.merged_weights import merged_weights, weights_on_cpu
from miner.inference.vllm.colocated_llm import ColocatedLLM, transformers_as_before
from tests.builders import build_qwen3

PUSHES = 100
reload: Any = SimpleNamespace(reloading=lambda llm: nullcontext())
Push = Callable[[], object]


def adapted(model: PreTrainedModel) -> PeftModel:
    """`model` with adapters that change what it computes."""
    config = LoraConfig(
        r=2, lora_alpha=6, target_modules="all-linear", init_lora_weights=False,
        fan_in_fan_out=isinstance(model, GPT2LMHeadModel),
    )  # fmt: skip
    torch.manual_seed(1)
    return get_peft_model(model.eval(), config, autocast_adapter_dtype=True)


@torch.no_grad()
def move(model: PeftModel) -> None:
    """A step of training."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.01 * torch.randn_like(parameter))


def frozen_hash(model: PeftModel) -> str:
    """Of every bit of the base's weights."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Loaded:
    """vLLM's model: keeps what is loaded into it."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        self.weights |= {name: weight.clone() for name, weight in named}


@pytest.fixture
def colocated(monkeypatch: pytest.MonkeyPatch) -> Callable[[PeftModel], tuple[Push, Loaded]]:
    """The push into an engine of this process."""

    def make(model: PeftModel) -> tuple[Push, Loaded]:
        loaded = Loaded()
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=loaded))
        engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))
        vllm: Any = ModuleType("vllm")
        vllm.LLM = lambda **_: SimpleNamespace(llm_engine=engine, reset_prefix_cache=lambda: None)
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        monkeypatch.setitem(sys.modules, "miner.inference.vllm.reload", reload)
        llm = ColocatedLLM("base", partial(merged_weights, model), sleeps=False)
        return llm.sync_weights, loaded

    return make


def test_pushes_leave_the_frozen_base_as_it_was(
    colocated: Callable[[PeftModel], tuple[Push, Loaded]],
) -> None:
    """A hundred, of adapters that move in between; the engine has what would be published."""
    model = adapted(build_qwen3().to(torch.bfloat16))
    push, loaded = colocated(model)
    before = frozen_hash(model)
    for _ in range(PUSHES):
        move(model)
        push()
    assert frozen_hash(model) == before
    published = weights_on_cpu(model)
    assert loaded.weights.keys() == published.keys()
    assert all(torch.equal(loaded.weights[name], weight) for name, weight in published.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapted_weight_is_merged_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    base = build_qwen3().to(dtype)
    name = "model.layers.0.mlp.up_proj"
    before = base.get_submodule(name).weight.detach().clone()
    model = adapted(base)
    layer: Any = model.get_base_model().get_submodule(name)
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = (before.float() + 6 / 2 * (up.float() @ down.float())).to(dtype)
    assert torch.equal(weights_on_cpu(model)[f"{name}.weight"], expected)
    assert not torch.equal(expected, before)


@pytest.mark.parametrize(
    "base",
    [
        build_qwen3,
        lambda: build_qwen3(tie_word_embeddings=False),
        lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=400)),
    ],
    ids=["tied", "untied", "transposed"],
)
def test_the_merged_model_computes_what_the_adapted_one_does(
    base: Callable[[], PreTrainedModel],
) -> None:
    torch.manual_seed(0)
    model = adapted(base())
    merged = base().eval()
    merged.load_state_dict(weights_on_cpu(model), strict=False)
    merged.tie_weights()
    ids = torch.tensor([[3, 5, 6, 7]])
    with torch.inference_mode():
        torch.testing.assert_close(merged(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapt", [adapted, lambda model: model], ids=["adapted", "full"])
def test_buffers_of_the_files_are_sent_too_and_are_not_rounded(adapt: Callable[..., Any]) -> None:
    """Such as the bias of a router, which vLLM loses when it sleeps."""
    model = build_qwen3()
    mlp: Any = model.model.layers[0].mlp
    mlp.register_buffer("expert_bias", torch.tensor([0.1]))
    mlp.register_buffer("scratch", torch.zeros(1), persistent=False)
    sent = weights_on_cpu(adapt(model), dtype=torch.bfloat16)
    assert torch.equal(sent.pop("model.layers.0.mlp.expert_bias"), torch.tensor([0.1]))
    assert {weight.dtype for weight in sent.values()} == {torch.bfloat16}
    assert sent.keys() == weights_on_cpu(build_qwen3()).keys()


def test_a_process_that_only_takes_part_keeps_nothing() -> None:
    assert weights_on_cpu(build_qwen3(), keep=False) == {}


def test_an_engine_that_sleeps_wakes_its_weights_before_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the base's files have them, and into layers that are ready for that; waking puts vLLM's
    own buffers back, which layers that are ready lack."""
    done: list[str] = []
    given: dict[str, object] = {}
    model = SimpleNamespace(load_weights=lambda named: done.append(f"load {[n for n, _ in named]}"))
    runner = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))

    def open_llm(**options: object) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(
            llm_engine=engine,
            sleep=lambda level: done.append(f"sleep {level}"),
            wake_up=lambda tags: done.append(f"wake {tags[0]}"),
            reset_prefix_cache=lambda: done.append("reset"),
        )

    vllm: Any = ModuleType("vllm")
    vllm.LLM = open_llm
    monkeypatch.setitem(sys.modules, "vllm", vllm)

    @contextmanager
    def reloading(llm: Any) -> Iterator[None]:
        assert llm.llm_engine is engine
        done.append("ready")
        yield
        done.append("packed")

    double: Any = SimpleNamespace(reloading=reloading)
    monkeypatch.setitem(sys.modules, "miner.inference.vllm.reload", double)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    llm = ColocatedLLM(
        "base",
        lambda: iter([("a", torch.zeros(1)), ("b", torch.zeros(1))]),
        stored=lambda weight: {f"{n}.{part}": w for n, w in weight.items() for part in (0, 1)},
        sleeps=True,
        seed=3,
    )
    assert done == ["sleep 2"]
    assert given["enable_sleep_mode"] is True
    assert (given["max_num_batched_tokens"], given["seed"]) == (4096, 3)
    assert given["logprobs_mode"] == "processed_logprobs"
    assert given["language_model_only"] is True
    llm.sync_weights()
    loads = ["load ['a.0', 'a.1']", "load ['b.0', 'b.1']"]
    assert done[1:] == ["emptied", "wake weights", "ready", *loads, "packed", "reset"]


def test_what_vllm_changes_in_transformers_is_undone_for_the_trainer() -> None:
    """It takes the class for its own instance, and registers a configuration that no model has."""

    class Layer(torch.nn.Module):
        def forward(self) -> str:
            return "plain"

    def build(self: Any) -> None:
        torch.nn.Module.__init__(self)
        self.do_not_compile = False

    def call(self: Any) -> str:
        return str(self.forward()) if self.do_not_compile else "compiled"

    trained, ours = torch.nn.Sequential(Layer()), AutoConfig.for_model("qwen3_5").__class__
    with transformers_as_before(trained):
        Layer.__init__, Layer.__call__ = build, call  # type: ignore[assignment, method-assign]
        own = Layer()
        AutoConfig.register("qwen3_5", type("Own", (ours,), {}), exist_ok=True)
    hooked = list[bool]()
    trained[0].register_forward_hook(lambda *_: hooked.append(True))
    assert (trained[0](), Layer()(), own()) == ("plain", "plain", "compiled")
    assert hooked == [True]  # scores are read from hidden states by a hook
    assert AutoConfig.for_model("qwen3_5").__class__ is ours
