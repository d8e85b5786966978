"""Swapping FFNs in other people's models: transformers' own, and a few by hand."""

import pytest
import torch
from torch import nn

import mlpkit
from mlpkit.convert.swapping import SwapError, complete, recognise
from mlpkit.convert.swapping.recognising import Found

transformers = pytest.importorskip("transformers")

IDS = torch.arange(24).reshape(2, 12)
TINY = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    **TINY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
GPT2 = {**TINY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def model_of(kind, **options):
    """A tiny model of a family, with biases that are not zero."""
    torch.manual_seed(0)
    sizes = GPT2 if kind == "gpt2" else SIZES
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **options})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize(
    ("kind", "ffn"),
    [
        ("llama", "swiglu"),
        ("qwen3", {"name": "gated", "activation": "silu"}),
        ("phi3", "swiglu"),  # gate and up in one matrix
        ("gpt2", {"name": "naive", "activation": "gelu_new"}),  # weights the other way round
        ("gpt_neox", {"name": "naive", "activation": "gelu"}),
        ("nemotron", {"name": "naive", "activation": "relu2"}),
    ],
)
def test_the_same_ffn_with_the_weights_carried_gives_the_same_logits(kind, ffn):
    options = {"hidden_act": "gelu"} if kind == "gpt_neox" else {}
    model = model_of(kind, **options)
    before = logits(model)
    report = mlpkit.swap_ffn(model, ffn)
    assert (logits(model) - before).abs().max() < 1e-5
    assert report.parameters[0] == report.parameters[1]
    for layer in report.layers:
        assert layer.carried
        assert not layer.initialised
        assert not layer.unused
        assert type(model.get_submodule(layer.name)).__module__.startswith("mlpkit")


def test_every_expert_of_a_mixture_gets_the_weights_and_the_record_its_terms():
    model = model_of("llama")
    before = logits(model)
    report = mlpkit.swap_ffn(model, {"name": "moe", "num_experts": 4})
    assert (logits(model) - before).abs().max() < 1e-5
    assert report.layers[0].initialised == ("router.weight",)
    assert report.layers[0].carried[0] == "experts.gate_proj.weight"
    model.train()
    with mlpkit.record_routing(model) as record:
        model(IDS)
    assert list(record.load()) == [f"model.layers.{i}.mlp" for i in range(3)]
    assert record.losses().keys() == {"load", "z"}
    assert all(int(load.sum()) == IDS.numel() * 2 for load in record.load().values())


def test_a_swapped_activation_trains_with_the_carried_weights():
    model = model_of("llama")
    up = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    mlpkit.swap_ffn(model, {"name": "gated", "activation": "gelu"})
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, up)
    first, last = losses_of(model, steps=10)
    assert last < 0.8 * first


def test_a_swapped_mixture_trains_with_its_balance_terms():
    model = model_of("qwen3")
    mlpkit.swap_ffn(model, {"name": "moe", "num_experts": 4}, "model.layers.[12].mlp")
    router = model.model.layers[2].mlp.router.weight.detach().clone()
    first, last = losses_of(model, steps=10)
    assert last < 0.8 * first
    assert not torch.equal(model.model.layers[2].mlp.router.weight, router)


def losses_of(model, *, steps):
    """The losses of the first and the last step of a little training on one batch."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        with mlpkit.record_routing(model) as record:
            task = model(IDS, labels=IDS).loss
        (task + sum(record.losses().values())).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(task.item())
    return losses[0], losses[-1]


def test_what_is_not_carried_is_listed_with_the_reason():
    report = mlpkit.swap_ffn(model_of("llama"), {"name": "swiglu", "intermediate_size": 32})
    layer = report.layers[0]
    assert not layer.carried
    assert layer.initialised[0] == "gate_proj.weight (wanted (32, 16), found (24, 16))"
    assert layer.unused == ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    naive = mlpkit.swap_ffn(model_of("llama"), "naive")
    assert naive.layers[0].carried == ("up_proj.weight", "down_proj.weight")
    assert naive.layers[0].unused == ("gate_proj.weight",)
    gated = mlpkit.swap_ffn(model_of("gpt2"), "geglu").layers[0]
    assert gated.initialised == ("gate_proj.weight", "gate_proj.bias")
    assert set(gated.carried) == {
        f"{p}_proj.{k}" for p in ("up", "down") for k in ("weight", "bias")
    }


def test_someone_elses_mixture_is_replaced_with_new_weights():
    model = model_of("mixtral", num_local_experts=4, num_experts_per_tok=2)
    report = mlpkit.swap_ffn(model, {"name": "swiglu", "intermediate_size": 24})
    assert report.layers[0].was == "MixtralSparseMoeBlock"
    assert not report.layers[0].carried
    assert "gate.weight" in report.layers[0].unused
    assert logits(model).isfinite().all()


def test_the_report_counts_the_model_and_joins_equal_layers():
    model = model_of("llama")
    report = mlpkit.swap_ffn(model, "naive")
    before, after = report.parameters
    assert before - after == 3 * 16 * 24
    assert after == sum(p.numel() for p in model.parameters())
    text = str(report)
    assert "model.layers.0.mlp … model.layers.2.mlp (3 places): LlamaMLP → naive" in text
    assert f"parameters {before:,} → {after:,}" in text
    assert report.as_dict()["layers"][1]["name"] == "model.layers.1.mlp"


def test_a_function_chooses_and_new_weights_come_from_the_seed():
    def last(name, module):
        return name.endswith("2.mlp")

    weights = []
    for seed in (0, 0, 1):
        model = model_of("llama")
        report = mlpkit.swap_ffn(model, {"name": "naive", "intermediate_size": 8}, last, seed=seed)
        assert [layer.name for layer in report.layers] == ["model.layers.2.mlp"]
        weights.append(model.model.layers[2].mlp.up_proj.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_dtype_and_mode_are_those_of_what_stood_there():
    model = model_of("llama").to(torch.bfloat16).train()
    mlpkit.swap_ffn(model, "naive")
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert model.model.layers[0].mlp.training
    model = model_of("llama").eval()
    mlpkit.swap_ffn(model, "moe")
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("*.mpl", r"matches no module.*FFNs seem to stand at: model.layers.\*.mlp"),
        ("model.layer.*.mlp", r"did you mean 'model.layers.\*.mlp'\?"),
        ("*.layers.*", r"matches 'model.layers.0.\w+' and 'model.layers.0', which holds it"),
        (lambda name, module: False, r"where matches no module; FFNs seem to stand at: model.lay"),
        ("*.self_attn", r"'model.layers.0.self_attn' \(LlamaAttention\) cannot become an FFN"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused_and_the_model_stays(where, message):
    model = model_of("llama")
    before = logits(model)
    with pytest.raises(SwapError, match=message) as caught:
        mlpkit.swap_ffn(model, "swiglu", where)
    assert caught.value.exit_code == 2
    assert torch.equal(logits(model), before)


def test_a_block_that_returns_more_than_a_tensor_is_refused():
    model = model_of("gpt_oss", num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(SwapError, match=r"GptOssMLP\) cannot become an FFN: it returns a tuple"):
        mlpkit.swap_ffn(model, "swiglu")


class Shared(nn.Module):
    """One FFN at two places, as ALBERT has it, and a matrix tied to one of the FFN's."""

    def __init__(self):
        super().__init__()
        self.first = nn.ModuleDict({"mlp": Pair()})
        self.second = nn.ModuleDict({"mlp": self.first.mlp})
        self.tied = nn.Linear(8, 12, bias=False)
        self.tied.weight = self.first.mlp.fc1.weight

    def forward(self, x):
        return self.second.mlp(self.first.mlp(x))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.fc2(self.fc1(x).relu())


def test_a_module_at_two_places_stays_one_and_a_broken_tie_is_told():
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(3, 8)
    before = model(x)
    (layer,) = mlpkit.swap_ffn(model, "naive").layers
    assert model.first.mlp is model.second.mlp
    assert torch.allclose(model(x), before, atol=1e-6)
    assert "also at second.mlp" in layer.note
    assert "no longer tied: fc1.weight = tied.weight" in layer.note
    with pytest.raises(SwapError, match=r"'first.mlp' is the same module as 'second.mlp'"):
        mlpkit.swap_ffn(Shared(), "naive", "first.mlp")


def test_looking_at_a_module_changes_nothing_in_it():
    model = Shared()
    kept = model.first.mlp
    mlpkit.swap_ffn(model, "naive")
    assert kept.calls == 0


@pytest.mark.parametrize(
    ("names", "fused"),
    [
        (("w1", "w3", "w2"), False),
        (("wi_0", "wi_1", "wo"), False),
        (("gate_up_proj", "down_proj"), True),
    ],
)
def test_the_names_of_the_field_are_read(names, fused):
    torch.manual_seed(0)
    sizes = [(8, 24), (12, 8)] if fused else [(8, 12), (8, 12), (12, 8)]
    block = nn.ModuleDict({n: nn.Linear(*s) for n, s in zip(names, sizes, strict=True)})
    found = recognise(block)
    assert (found.hidden_size, found.intermediate_size, found.bias) == (8, 12, True)
    gate = block[names[0]].weight[:12]
    assert torch.equal(found.tensors["gate_proj.weight"], gate)
    up = block[names[0]].weight[12:] if fused else block[names[1]].weight
    assert torch.equal(found.tensors["up_proj.weight"], up)
    assert torch.equal(found.tensors["down_proj.bias"], block[names[-1]].bias)


def test_the_widths_and_biases_that_are_given_win():
    found = Found(hidden_size=8, intermediate_size=12, bias=True, tensors={"x": torch.zeros(1)})
    assert complete("swiglu", found) == {"name": "swiglu", "intermediate_size": 12, "bias": True}
    given = {"name": "swiglu", "intermediate_size": "4x", "bias": False}
    assert complete(given, found) == given
    moe = complete({"name": "moe", "expert": "naive"}, found)
    assert moe["expert"] == {"name": "naive", "intermediate_size": 12, "bias": True}
    assert complete("mixtral", found)["router"]["name"] == "topk"


def test_an_unknown_hidden_size_asks_for_it():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.scale

    model = nn.ModuleDict({"mlp": Odd()})
    with pytest.raises(SwapError, match="give hidden_size=H"):
        mlpkit.swap_ffn(model, "naive", "mlp")
    mlpkit.swap_ffn(model, "naive", "mlp", hidden_size=8)
    assert model.mlp(torch.zeros(2, 8)).shape == (2, 8)
    with pytest.raises(SwapError, match=r"give a model with modules|the model has: no modules"):
        mlpkit.swap_ffn(nn.Linear(2, 2), "naive")
