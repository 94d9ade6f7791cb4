"""Fine-tuning: what moves moves, what is frozen stays, and a run with an adapter is its base and a few numbers."""

import pytest
import torch

from regard.adapters.lora import LoraConfig
from regard.errors import CheckpointError, ConfigError
from regard.models.heads import Classifier, HeadConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.runs.finetune import finetune
from regard.runs.launch import train
from regard.runs.run import load
from regard.training.checkpoints import read_tensors, trained_weights, weights_of
from regard.training.finetuning import FinetuneConfig, adapt, layer_of, opens_at, share_of, usual_rate
from regard.training.optimizers import make_optimizer

SHAPE = {"num_layers": 3, "decoder_layers": 0, "model_dim": 12, "num_heads": 3, "feedforward_dim": 17, "dropout": 0.0}
ROWS = [
    (f"{word} film number {number}", label) for number in range(60) for word, label in (("good", "+"), ("bad", "-"))
]
TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0},
    "data": {"tokenizer": "characters"},
    "train": {"max_steps": 6, "batch_tokens": 300, "evaluate_every": 3, "precision": "float32"},
}


def model_and_base() -> tuple[Classifier, dict[str, torch.Tensor]]:
    config = TransformerConfig.read(SHAPE)
    base = weights_of(Transformer(config, 31))
    return Classifier(config, HeadConfig(), 31, 5), {f"body.{name}": weight for name, weight in base.items()}


def settings(method: str, **more) -> FinetuneConfig:
    return FinetuneConfig.read({"base": "somewhere", "method": method, **more})


@pytest.mark.parametrize(
    ("method", "moves"),
    [
        ("all", lambda name: True),
        ("head", lambda name: name.startswith("head.")),
        ("top", lambda name: name.startswith(("head.", "body.encoder.blocks.1.", "body.encoder.blocks.2."))),
        ("lora", lambda name: name.startswith("head.") or name.endswith((".a", ".b"))),
    ],
)
def test_each_method_moves_its_own_weights_and_no_others(method: str, moves):
    model, base = model_and_base()
    adapt(model, settings(method), base)
    for name, parameter in model.named_parameters():
        is_top_norm = method == "top" and "final_norm" in name
        assert parameter.requires_grad == (moves(name) or is_top_norm), name
    own = {name.replace(".base.", "."): weight for name, weight in weights_of(model).items()}
    for name, weight in base.items():
        torch.testing.assert_close(own[name], weight)
    assert set(trained_weights(model)) == {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_a_base_that_lacks_weights_is_named():
    model, base = model_and_base()
    del base["body.encoder.blocks.2.attention.query.weight"]
    with pytest.raises(CheckpointError, match=r"missing encoder\.blocks\.2\.attention\.query\.weight"):
        adapt(model, settings("all"), base)


def test_lower_layers_have_smaller_rates_and_begin_later():
    model, _ = model_and_base()
    tuned = settings("all", layer_decay=0.5, gradual=True)
    names = ["head.output.weight", "body.encoder.blocks.2.attention.query.weight", "body.embedding.weight"]
    assert [layer_of(name, 3) for name in names] == [4, 3, 0]
    assert [share_of(name, tuned, 3) for name in names] == [1.0, 0.5, 0.0625]
    assert [opens_at(name, tuned, 3) for name in names] == [0.0, 0.125, 0.5]
    optimizer = make_optimizer(
        "adamw",
        model,
        betas=(0.9, 0.99),
        epsilon=1e-8,
        weight_decay=0.1,
        pace=lambda name: (share_of(name, tuned, 3), opens_at(name, tuned, 3)),
    )
    places = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["share"] == share_of(places[parameter], tuned, 3)
            assert group["weight_decay"] == (0.1 if parameter.dim() > 1 else 0.0)


def test_rates_of_layers_need_layers_that_move():
    with pytest.raises(ConfigError, match=r"for layers that move, got finetune\.method=lora"):
        settings("lora", gradual=True)


@pytest.fixture
def base_run(single_precision, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return train(ROWS, out=tmp_path / "base", settings={**TINY, "task": "classification"}, show_progress=False).path


@pytest.mark.parametrize("method", ["all", "head", "top", "lora"])
def test_a_run_goes_on_from_another_and_answers_the_same_once_loaded(base_run, tmp_path, method):
    own = {"train": TINY["train"], "finetune": {"top_layers": 1, "lora": LoraConfig(rank=2).model_dump()}}
    made = finetune(base_run, ROWS, out=tmp_path / "tuned", method=method, settings=own, show_progress=False)
    answers = [each.probabilities for each in made.predictions(["good film", "bad film"])]
    again = load(tmp_path / "tuned")
    assert [each.probabilities for each in again.predictions(["good film", "bad film"])] == answers
    kept = read_tensors(made.folder.model_path)[0]
    whole = read_tensors(base_run / "model.safetensors")[0]
    if method == "lora":
        assert sum(tensor.numel() for tensor in kept.values()) < 0.7 * sum(tensor.numel() for tensor in whole.values())
        assert not any(name.endswith("embedding.weight") for name in kept)
    else:
        assert kept.keys() == whole.keys()
        is_moved = not torch.equal(kept["body.embedding.weight"], whole["body.embedding.weight"])
        assert is_moved == (method == "all")


@pytest.mark.parametrize("bits", [8, 4])
def test_an_adapter_on_packed_weights_keeps_none_of_them(base_run, tmp_path, bits: int):
    own = {"train": TINY["train"], "finetune": {"lora": LoraConfig(rank=2, bits=bits).model_dump()}}
    made = finetune(base_run, ROWS, out=tmp_path / "tuned", method="lora", settings=own, show_progress=False)
    kept = read_tensors(made.folder.model_path)[0]
    assert {name.rpartition(".")[2] for name in kept if name.startswith("body.")} == {"a", "b"}
    assert load(tmp_path / "tuned").predict("good film") == made.predict("good film")


def test_an_adapter_refuses_another_base(base_run, tmp_path):
    own = {"train": TINY["train"]}
    finetune(base_run, ROWS, out=tmp_path / "tuned", method="lora", settings=own, show_progress=False)
    train(
        ROWS, out=base_run, overwrite=True, show_progress=False,
        settings={**TINY, "task": "classification", "train": {**TINY["train"], "seed": 7}},
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="the adapter belongs to another base: it was trained on weights"):
        load(tmp_path / "tuned").predict("good film")


def test_a_base_without_a_mask_token_cannot_be_trained_to_fill_blanks(base_run, tmp_path):
    text = [(f"{text} {label}",) for text, label in ROWS]
    with pytest.raises(ConfigError, match=r"masked training needs a token .*, which .* has not"):
        finetune(base_run, text, out=tmp_path / "masked", task="masked", show_progress=False)
    assert not (tmp_path / "masked").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["all", "lora"])
def test_few_rows_have_a_lower_peak_unless_one_is_set(base_run, tmp_path, method):
    many = [
        (f"{word} film number {number}", label)
        for number in range(600)
        for word, label in (("good", "+"), ("bad", "-"))
    ]
    rates = []
    for rows, given in ((ROWS, {}), (many, {}), (ROWS, {"learning_rate": 0.007})):
        settings = {"train": {"max_steps": 1, "precision": "float32", **given}}
        out = tmp_path / f"tuned-{len(rates)}"
        rates.append(
            finetune(
                base_run, rows, out=out, method=method, settings=settings, show_progress=False
            ).settings.train.learning_rate
        )
    assert rates[1] == usual_rate(12, method)
    assert rates[0] == pytest.approx(rates[1] / 3, rel=0.05)  # written with two digits
    assert rates[2] == 0.007


@pytest.mark.parametrize(("num_valid", "has_one_look"), [(40, True), (120, False)])
def test_too_few_validation_rows_have_one_look_and_choose_nothing(base_run, tmp_path, num_valid, has_one_look):
    lines = ["text\tlabel", *("\t".join(row) for row in (ROWS * 2)[:num_valid])]
    (tmp_path / "valid.tsv").write_text("\n".join(lines) + "\n")
    own = {"data": {"valid": [str(tmp_path / "valid.tsv")]}, "train": {"max_steps": 24, "batch_tokens": 300}}
    tuned = finetune(base_run, ROWS, out=tmp_path / "tuned", method="head", settings=own, show_progress=False)
    looks = [line["step"] for line in tuned.folder.read_metrics() if "valid_loss" in line]
    assert looks == ([24] if has_one_look else [10, 20, 24])
