"""Our adapters against those of peft: the same corrections beside the same weights, and the same files."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, adapted_layers, add_lora, load_lora, lora_tensors
from regard.errors import CheckpointError, ConfigError
from regard.interop.hf.weights import ForeignWeight
from regard.interop.peft import module_names, read_peft, write_peft

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

VOCAB, MODEL, HEADS, WIDE, RANK, ALPHA = 31, 22, 2, 29, 3, 7.0
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "rank-stabilized": ({"rank_stabilized": True}, {"use_rslora": True}),
    "dora": ({"dora": True}, {"use_dora": True}),
    "both": ({"dora": True, "rank_stabilized": True}, {"use_dora": True, "use_rslora": True}),
}
PARTS = {
    "a": "lora_A.default.weight",
    "b": "lora_B.default.weight",
    "magnitude": "lora_magnitude_vector.default.weight",
}


def make_bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=MODEL, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=WIDE,
        max_position_embeddings=13, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return filled(transformers.BertForSequenceClassification(config).double())


def make_llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=28, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=1,
        intermediate_size=WIDE, max_position_embeddings=13, pad_token_id=0,
    )  # fmt: skip
    return filled(transformers.LlamaForSequenceClassification(config).double())


def filled(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


TARGETS = {make_bert: ["query", "value", "dense"], make_llama: ["q_proj", "k_proj", "o_proj", "down_proj"]}


@pytest.fixture(params=list(TARGETS), ids=["bert", "llama"])
def base(request: pytest.FixtureRequest) -> tuple[nn.Module, list[str]]:
    return request.param(), TARGETS[request.param]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the adapter, layer by layer."""
    return [parameter for layer in adapted_layers(model).values() for parameter in layer.parts().values()]


def theirs_of(base: nn.Module, targets: list[str], **settings: Any) -> Any:
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, **settings)
    made = peft.get_peft_model(copy.deepcopy(base), config).eval()
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return made


def ours_of(base: nn.Module, targets: list[str], **settings: Any) -> nn.Module:
    made = copy.deepcopy(base)
    add_lora(made, LoraConfig(rank=RANK, alpha=ALPHA, targets=[f"*.{name}" for name in targets], **settings))
    return made


def their_parameter(model: nn.Module, name: str) -> nn.Parameter:
    module, _, part = name.rpartition(".")
    return model.get_parameter(f"base_model.model.{module}.{PARTS[part]}")


def loss_of(model: nn.Module) -> Tensor:
    """Few tokens first and then many: corrections are added to products, and then to matrices."""
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros(())
    for rows, time in ((1, 3), (7, 11)):
        tokens = torch.randint(1, VOCAB, (rows, time), generator=generator)
        labels = torch.randint(2, (rows,), generator=generator)
        total = total + model(input_ids=tokens, labels=labels).loss
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_same_loss_and_gradients_as_peft(base: tuple[nn.Module, list[str]], kind: str):
    model, targets = base
    ours_settings, their_settings = KINDS[kind]
    ours, theirs = ours_of(model, targets, **ours_settings), theirs_of(model, targets, **their_settings)
    load_lora(ours, {name: their_parameter(theirs, name) for name in lora_tensors(ours)})

    found, expected = loss_of(ours), loss_of(theirs)
    found.backward()
    expected.backward()

    torch.testing.assert_close(found, expected)
    names = list(lora_tensors(ours))
    assert len(names) == sum(parameter.requires_grad for parameter in theirs.parameters())
    for name, parameter in zip(names, trainable(ours), strict=True):
        torch.testing.assert_close(parameter.grad, their_parameter(theirs, name).grad)


def test_untrained_magnitudes_are_those_of_peft(base: tuple[nn.Module, list[str]]):
    model, targets = base
    ours = ours_of(model, targets, dora=True)
    config = peft.LoraConfig(r=RANK, target_modules=targets, use_dora=True)
    theirs = peft.get_peft_model(copy.deepcopy(model), config)
    for name, tensor in lora_tensors(ours).items():
        if name.endswith("magnitude"):
            torch.testing.assert_close(tensor, their_parameter(theirs, name).data)


@pytest.mark.parametrize("kind", KINDS)
def test_what_we_write_peft_reads(base: tuple[nn.Module, list[str]], kind: str, tmp_path):
    model, targets = base
    settings = {"dropout": 0.125, **KINDS[kind][0]}
    ours = ours_of(model, targets, **settings)
    for parameter in trainable(ours):
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    config = LoraConfig(rank=RANK, alpha=ALPHA, targets=[f"*.{name}" for name in targets], **settings)
    write_peft(tmp_path, ours, config, lambda name: name)

    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path)).eval()

    torch.testing.assert_close(loss_of(ours.eval()), loss_of(theirs))
    assert theirs.peft_config["default"].lora_dropout == 0.125


@pytest.mark.parametrize("kind", KINDS)
def test_what_peft_writes_we_read(base: tuple[nn.Module, list[str]], kind: str, tmp_path):
    model, targets = base
    theirs = theirs_of(model, targets, **KINDS[kind][1], lora_dropout=0.125)
    theirs.save_pretrained(tmp_path)

    ours = copy.deepcopy(model)
    adapter = read_peft(tmp_path, ours, lambda name: name)
    add_lora(ours, adapter.config)
    load_lora(ours, adapter.tensors)

    torch.testing.assert_close(loss_of(ours.eval()), loss_of(theirs))
    assert adapter.config.dropout == 0.125
    assert adapter.others == {}


def test_a_head_is_written_and_read_with_the_adapter(tmp_path):
    model = make_bert()
    theirs = theirs_of(model, ["query"], modules_to_save=["classifier"])
    theirs.save_pretrained(tmp_path / "theirs")
    adapter = read_peft(tmp_path / "theirs", model, lambda name: name)
    assert set(adapter.others) == {"classifier.weight", "classifier.bias"}

    ours = copy.deepcopy(model)
    add_lora(ours, adapter.config)
    load_lora(ours, adapter.tensors)
    ours.load_state_dict(adapter.others, strict=False)
    torch.testing.assert_close(loss_of(ours), loss_of(theirs))

    write_peft(tmp_path / "ours", ours, adapter.config, lambda name: name, others=adapter.others)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "ours")).eval()
    torch.testing.assert_close(loss_of(again), loss_of(theirs))


class Small(nn.Module):
    """Two linear layers by our names."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(7, 5), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.query(x) * self.key(x)


class Foreign(nn.Module):
    """The same by other names."""

    def __init__(self, ours: Small) -> None:
        super().__init__()
        self.q_proj, self.k_proj = copy.deepcopy(ours.query), copy.deepcopy(ours.key)

    def forward(self, x: Tensor) -> Tensor:
        return self.q_proj(x) * self.k_proj(x)


NAMES = {"query": "q_proj", "key": "k_proj"}


def adapted_small(**settings: Any) -> tuple[Small, LoraConfig]:
    model, config = Small(), LoraConfig(rank=RANK, targets=["query", "key"], **settings)
    add_lora(model, config)
    for parameter in trainable(model):
        nn.init.normal_(parameter)
    return model, config


def test_layers_with_other_names_there_and_back(tmp_path):
    plain = Small()
    ours, config = copy.deepcopy(plain), LoraConfig(rank=RANK, alpha=2.5, targets=["query", "key"])
    add_lora(ours, config)
    for parameter in trainable(ours):
        nn.init.normal_(parameter)
    write_peft(tmp_path, ours, config, NAMES)
    x = torch.randn(11, 7)

    theirs = peft.PeftModel.from_pretrained(Foreign(plain), str(tmp_path))
    torch.testing.assert_close(ours(x), theirs(x))

    adapter = read_peft(tmp_path, plain, NAMES)
    assert adapter.config == config
    torch.testing.assert_close(adapter.tensors, lora_tensors(ours))


def test_two_layers_that_are_one_elsewhere_are_refused(tmp_path):
    model, config = adapted_small()
    with pytest.raises(ConfigError, match="query and key"):
        write_peft(tmp_path, model, config, lambda _: "qkv")


def test_a_layer_without_a_counterpart_is_refused(tmp_path):
    model, config = adapted_small()
    with pytest.raises(ConfigError, match="key has no counterpart"):
        write_peft(tmp_path, model, config, {"query": "q_proj"})
    write_peft(tmp_path, model, config, NAMES)
    with pytest.raises(CheckpointError, match=r"layers that the model does not have: k_proj\.lora_A"):
        read_peft(tmp_path, Small(), {"query": "q_proj"})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"use_qalora": True}, "use_qalora"),
        ({"init_lora_weights": "pissa"}, "changes the weights of the base"),
        ({"bias": "all"}, "biases"),
        ({"peft_type": "IA3"}, "got IA3"),
        ({"r": "8"}, "adapter.rank"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_settings_that_mean_another_function_are_refused(values: dict[str, Any], said: str, tmp_path):
    model, config = adapted_small()
    write_peft(tmp_path, model, config, NAMES)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigError, match=said):
        read_peft(tmp_path, Small(), NAMES)


def test_a_folder_without_an_adapter_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        read_peft(tmp_path, Small(), NAMES)


def test_a_damaged_file_is_an_error(tmp_path):
    model, config = adapted_small()
    write_peft(tmp_path, model, config, NAMES)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        read_peft(tmp_path, Small(), NAMES)


def test_names_of_modules_come_from_the_names_of_weights():
    names = {
        "embedding.weight": ForeignWeight("wte.weight"),
        "blocks.0.attention.query.weight": ForeignWeight("h.0.attn.c_attn.weight", part=(0, 3)),
        "blocks.0.feedforward.input.weight": ForeignWeight("h.0.mlp.c_fc.weight", is_transposed=True),
        "blocks.0.feedforward.input.bias": ForeignWeight("h.0.mlp.c_fc.bias"),
    }
    assert module_names(names) == {"embedding": "wte", "blocks.0.feedforward.input": "h.0.mlp.c_fc"}
