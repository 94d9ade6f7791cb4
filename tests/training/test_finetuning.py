"""Fine-tuning: which weights are trained, from where they start, and at which learning rates."""

import pytest
import torch

from regard.errors import CheckpointError, ConfigError
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.checkpoints import trained_weights, weights_of
from regard.training.finetuning import FinetuneConfig, adapt, layer_of, lr_multipliers
from regard.training.optimizers import make_optimizer

SHAPE = {"num_layers": 3, "decoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 17, "dropout": 0.0}


def model_and_base() -> tuple[SequenceClassifier, dict[str, torch.Tensor]]:
    config = TransformerConfig.read(SHAPE)
    base = weights_of(Transformer(config, 31))
    classifier = SequenceClassifier(config, HeadConfig(pooling="mean"), 31, 5)
    return classifier, {f"body.{name}": weight for name, weight in base.items()}


def config_of(method: str, **more) -> FinetuneConfig:
    return FinetuneConfig.read({"base": "somewhere", "method": method, **more})


@pytest.mark.parametrize(
    ("method", "is_trained"),
    [
        ("all", lambda name: True),
        ("head", lambda name: name.startswith("head.")),
        ("top", lambda name: name.startswith(("head.", "body.encoder.blocks.1.", "body.encoder.blocks.2."))),
        ("lora", lambda name: name.startswith("head.") or name.endswith((".a", ".b"))),
    ],
)
def test_each_method_trains_its_own_weights_and_no_others(method: str, is_trained):
    model, base = model_and_base()
    adapt(model, config_of(method), base)
    for name, parameter in model.named_parameters():
        is_top_norm = method == "top" and "final_norm" in name
        assert parameter.requires_grad == (is_trained(name) or is_top_norm), name
    own = {name.replace(".base.", "."): weight for name, weight in weights_of(model).items()}
    for name, weight in base.items():
        torch.testing.assert_close(own[name], weight)
    assert set(trained_weights(model)) == {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_weights_that_a_base_lacks_are_named():
    model, base = model_and_base()
    del base["body.encoder.blocks.2.attention.query.weight"]
    with pytest.raises(CheckpointError, match=r"encoder\.blocks\.2\.attention\.query\.weight"):
        adapt(model, config_of("all"), base)


def test_lower_layers_have_smaller_rates_and_are_unfrozen_later():
    model, _ = model_and_base()
    names = ["head.output.weight", "body.encoder.blocks.2.attention.query.weight", "body.embedding.weight"]
    assert [layer_of(name, 3, is_new=name.startswith("head.")) for name in names] == [4, 3, 0]
    multipliers = lr_multipliers(model, config_of("all", layer_decay=0.5, gradual=True))
    assert [multipliers(name) for name in names] == [(1.0, 0.0), (0.5, 0.125), (0.0625, 0.5)]
    optimizer = make_optimizer(
        "adamw", model, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.1, lr_multipliers=multipliers
    )
    places = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert (group["lr_scale"], group["unfreeze_at"]) == multipliers(places[parameter])
            assert group["weight_decay"] == (0.1 if parameter.dim() > 1 else 0.0)


@pytest.mark.parametrize("method", ["head", "lora"])
@pytest.mark.parametrize("setting", [{"gradual": True}, {"layer_decay": 0.9}])
def test_rates_of_layers_need_trained_layers(method: str, setting: dict):
    with pytest.raises(ConfigError, match=f"finetune.method={method}"):
        config_of(method, **setting)
