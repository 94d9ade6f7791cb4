"""Captions: decoders that read the cells of an image, references, splits by image, and where words point."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tiny import Tiny, tiny

from regard.data.builtin.scenes import generate_scenes
from regard.data.caption_sources import Caption, GroundedWords, read_captions
from regard.data.formats.images import to_data_uri
from regard.data.settings import DataConfig
from regard.errors import ConfigError
from regard.evaluation import find_metric
from regard.generation.config import GenerationConfig
from regard.models.family import build_model, read_model_config
from regard.models.protocols import EncoderOutput
from regard.runs.finetune import finetune
from regard.runs.run import Run
from regard.runs.train import train
from regard.tasks.captioning.model import decoder_config, pointing_of
from regard.tasks.content import Prediction
from regard.tasks.registry import detect_task
from regard.tasks.task import EvaluationData, Likelihoods
from regard.text.tokenizer import train_tokenizer
from regard.training.checkpoints import read_tensors

SMALL: dict[str, Any] = {"image": {"size": 8, "patch_size": 4}, "decoder_dim": 16, "decoder_dropout": 0.0}
MODEL = {"num_layers": 1, "model_dim": 12}
DECODERS = ("lstm-attention", "gru-attention", "transformer", "lstm")


def made(decoder: str = "lstm-attention", **settings: Any) -> Tiny:
    rows = list(generate_scenes(80, 3))
    return tiny("captioning", rows, preset="cnn-tiny", model=MODEL, decoder=decoder, **{**SMALL, **settings})


@pytest.mark.parametrize("decoder", DECODERS)
def test_generation_step_by_step_is_the_likeliest_token_after_each_whole_prefix(decoder: str):
    task = made(decoder)
    model = task.build(std=0.3)
    inputs = [row[0] for row in task.data.held_out["valid"]]
    config = GenerationConfig(max_tokens=6)
    found = [each.output for each in task.task.predictor(model, config)(inputs)]
    tokenizer = task.task.tokenizer
    expected = []
    for (pixels,) in ([*task.task.pixel_batches([image], torch.device("cpu"))] for image in inputs):
        tokens = [tokenizer.start]
        while len(tokens) < 7:
            hidden = model.hidden_states(model.encode(pixels), torch.tensor([[tokens]]))
            logits = model.decoder.logits(hidden)[0, -1].detach()
            logits[list(tokenizer.never_generated)] = -torch.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == tokenizer.end:
                break
        expected += tokenizer.decode([tokens])
    assert found == expected
    searched = task.task.predictor(model, GenerationConfig(max_tokens=6, beam_size=3))(inputs)
    assert all(each.score is not None for each in searched)


def test_a_decoder_reads_the_hidden_states_of_another_encoder_only():
    for name in ("lstm-attention", "transformer"):
        decoder = build_model(decoder_config(name, model_dim=16), 11).replace_encoder()
        with pytest.raises(ConfigError, match="it encodes nothing itself"):
            decoder.encode(torch.tensor([[3]]))
        with pytest.raises(ConfigError, match="needs a source"):
            decoder.decode(torch.tensor([[3]]))
    config = read_model_config({"family": "convolutional", "model_dim": 12, "num_layers": 1})
    with pytest.raises(ConfigError, match="family convolutional cannot read"):
        build_model(config, 11).replace_encoder()
    with pytest.raises(ConfigError, match=r"task\.decoder must be a preset with a decoder"):
        decoder_config("cnn")


def test_the_average_of_hidden_states_leaves_out_padding():
    states = torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])[:, None, None]
    expected = torch.stack([states[0].mean(dim=0), states[1, :2].mean(dim=0)])
    torch.testing.assert_close(EncoderOutput(states, mask).average(), expected)


def test_one_vector_is_the_mean_of_the_map_and_has_nothing_to_point_with():
    task = made("lstm", memory="mean")
    model = task.build(std=0.3)
    (pixels,) = task.task.pixel_batches([task.data.held_out["valid"][0][0]], torch.device("cpu"))
    encoded = model.encode(pixels).hidden_states
    cells = model.body.encode(pixels).hidden_states
    torch.testing.assert_close(encoded[:, 0], model.norm(model.projection(cells.mean(dim=1))))
    assert encoded.size(1) == 1
    assert not model.has_maps
    with pytest.raises(ConfigError, match="reads one vector"):
        task.task.picture_attention(model, task.data.held_out["valid"][0][0], "a dog")
    assert made("transformer").build().has_maps


@pytest.mark.parametrize("decoder", DECODERS[:3])
def test_weights_of_the_cells_sum_to_one_for_each_token(decoder: str):
    task = made(decoder)
    tokens, layers, _ = task.task.picture_attention(task.build(std=0.3), task.data.held_out["valid"][0][0], "a red dog")
    assert tokens[-1] == "</s>"
    for layer in layers:
        assert layer.shape[1:] == (len(tokens), 4)
        np.testing.assert_allclose(layer.sum(axis=-1), 1.0, rtol=1e-5)


def test_all_captions_of_an_image_are_its_references():
    task = made()
    rows = task.data.held_out["valid"]
    for reference in (0, 1):
        outputs = [read_captions(row[1])[reference].text.upper() + "." for row in rows]
        predictions = [Prediction(row[0], output) for row, output in zip(rows, outputs, strict=True)]
        examples = task.task.examples(EvaluationData(rows, predictions, Likelihoods([], [])))
        assert find_metric("exact_match").value(examples) == 1.0
        assert find_metric("bleu").value(examples) == pytest.approx(100.0)


def test_an_image_is_never_in_two_sets_even_under_two_names(tmp_path: Path):
    rows = []
    for number in range(60):
        pixels = np.full((8, 8, 3), number // 2, np.uint8)  # files 2n and 2n + 1 are copies
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows += [(str(tmp_path / f"{number}.png"), f"caption {word} of it") for word in ("one", "two")]
    task = tiny("captioning", rows, preset="cnn-tiny", model=MODEL, data={"splits": [0.5, 0.25, 0.25]}, **SMALL)
    held_out = {role: {int(Path(row[0]).stem) // 2 for row in some} for role, some in task.data.held_out.items()}
    assert held_out["valid"]
    assert not held_out["valid"] & held_out["test"]
    pixels = task.data.train.pixels(np.arange(len(task.data.train)))
    assert not {int(image.flat[0]) for image in pixels} & (held_out["valid"] | held_out["test"])
    assert len(task.data.train.captions) == 2 * len(task.data.train)


def test_pointing_is_the_attention_on_the_cells_of_the_box():
    caption = Caption("a dog runs", (GroundedWords(1, 2, (0.0, 0.0, 0.4, 0.4)),))
    tokenizer = train_tokenizer(["a dog runs"], "words", 9)
    weights = np.zeros((1, 4, 4))  # 2 x 2 cells; the box is on the first one
    weights[0, 1] = [0.7, 0.1, 0.1, 0.1]
    assert pointing_of([caption], tokenizer, weights) == pytest.approx((0.7, 1.0))
    spelled = train_tokenizer(["a dog runs"], "characters", 40)
    weights = np.zeros((1, 11, 4))
    weights[0, 2:5, 0] = [0.9, 0.6, 0.3]  # d, o and g
    assert pointing_of([caption], spelled, weights) == pytest.approx((0.6, 1.0))


def test_captions_are_recognized_and_labels_are_not(tmp_path: Path):
    def task_of(rows: list[tuple[str, str]]) -> str:
        return detect_task(DataConfig(train=["(rows in memory)"]), rows)[0]

    assert task_of([(f"{number}.png", f"a dog and {number} cats") for number in range(30)]) == "captioning"
    assert task_of([(f"{number}.png", "ab"[number % 2]) for number in range(30)]) == "image-classification"
    (tmp_path / "c.json").write_text('{"images": [], "annotations": []}')
    assert detect_task(DataConfig(train=[str(tmp_path / "c.json")]))[0] == "captioning"
    assert detect_task(DataConfig(train=["scenes"]))[0] == "captioning"


def test_every_word_of_the_scenes_is_in_the_vocabulary_and_none_of_them_is_mirrored():
    rows = list(generate_scenes(120, 1))
    task = tiny("captioning", rows, preset="cnn-tiny", model=MODEL, **SMALL)
    tokenizer = task.task.tokenizer
    encoded = tokenizer.encode([caption for _, caption, _ in rows])
    assert not tokenizer.count_unknown(encoded)
    assert [len(ids) for ids in encoded] == [len(caption.split()) for _, caption, _ in rows]
    assert task.settings.task.flips is False  # pyright: ignore[reportAttributeAccessIssue]


def test_images_are_mirrored_unless_captions_name_sides():
    words = [("left", False), ("next", True)]
    for word, expected in words:
        rows = [(image, f"a dog {word} of a cat {number}") for number, (image, *_) in enumerate(generate_scenes(60, 0))]
        task = tiny("captioning", rows, preset="cnn-tiny", model=MODEL, **SMALL)
        assert task.settings.task.flips is expected  # pyright: ignore[reportAttributeAccessIssue]


def test_the_baseline_is_the_caption_of_the_nearest_image():
    task = made()
    baseline = task.task.baseline(task.data)
    store, rows = task.data.train, np.arange(5)
    images = [to_data_uri(pixels.transpose(1, 2, 0)) for pixels in store.pixels(rows)]
    first = task.task.tokenizer.decode([some[0] for some in store.captions_of(rows)])
    assert list(baseline.predict(images).outputs) == first


@pytest.mark.slow
def test_a_frozen_image_encoder_stays_as_it_was(tmp_path: Path):
    """An image classifier is the base; of a captioner on top of it, only what is new is trained."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path / "labels"
    for number in range(40):
        name = folder / ("dark", "bright")[number % 2] / f"{number}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (90 * (number % 2) + number,) * 3).save(name)
    settings = {"model": MODEL, "task": {"image": SMALL["image"]}, "train": {"max_steps": 3, "device": "cpu"}}
    train(folder, out=tmp_path / "base", model="cnn-tiny", settings=settings, show_progress=False)
    small = {"task": {"decoder_dim": 16}, "train": {"device": "cpu"}, "data": {"splits": [0.6, 0.2, 0.2]}}
    rows = list(generate_scenes(60, 0))
    finetune(tmp_path / "base", rows, task="captioning", out=tmp_path / "run", method="head", steps=4, settings=small,
             show_progress=False)  # fmt: skip
    before, after = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("base", "run"))
    body = [name for name in before if name.startswith("body.")]
    assert body
    for name in body:
        assert torch.equal(before[name], after[name]), name
    run = Run(tmp_path / "run")
    assert isinstance(run.predict(rows[0][0]), str)
