"""`regard plan`: tables, JSON, and errors in one line."""

import json

import pytest

SMALL = ["--model", "gpt-tiny", "--context", "64"]


def test_tables_of_memory_and_time_for_each_number_of_devices(regard):
    shown = regard("plan", *SMALL, "--gpus", "1,8,64", "--sharding", "full", "--tokens", "1e9").succeeds().out
    for words in (
        "memory of each device",
        "time of a step",
        "model FLOPs",
        "measured on an H200",
        "all tokens",
        "cache",
    ):
        assert words in shown
    assert [line.split()[0] for line in shown.splitlines() if line.strip()[:2] in ("1 ", "8 ", "64")] == [
        "1", "8", "64", "1", "8", "64",
    ]  # fmt: skip


def test_the_same_as_json(regard):
    table = json.loads(regard("plan", *SMALL, "--gpus", "2", "--json").succeeds().out)
    assert table["rows"][0]["devices"] == 2
    assert table["rows"][0]["memory"]["weights"] == 4 * table["parameters"]
    every = json.loads(regard("plan", *SMALL, "--tensor-parallel", "4", "--json").succeeds().out)
    assert [row["devices"] for row in every["rows"]][:2] == [4, 8]


def test_settings_change_the_model(regard):
    sizes = [
        json.loads(regard("plan", *SMALL, "--gpus", "1", "--json", *more).succeeds().out)["parameters"]
        for more in ([], ["--set", "model.num_layers=8"])
    ]
    assert sizes[1] > sizes[0]


def test_what_does_not_fit_is_said(regard):
    wide = ["--model", "llama-big", "--set", "model.model_dim=16384", "--set", "model.num_layers=8", "--set",
            "model.num_heads=64", "--context", "512"]  # fmt: skip
    shown = regard("plan", *wide, "--gpus", "1,64", "--hardware", "h100", "--sharding", "full").succeeds().out
    assert "from 64 devices on it fits" in shown
    assert "it fits on none of these" in regard("plan", *wide, "--gpus", "1", "--hardware", "rtx4090").succeeds().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "gtp"], "no preset is called 'gtp'"),
        ([*SMALL, "--hardware", "h20"], "no hardware is called 'h20'; did you mean h200?"),
        ([*SMALL, "--sharding", "ful"], "no sharding is called 'ful'; did you mean full?"),
        ([*SMALL, "--optimizer", "moun"], "no optimizer is called 'moun'; did you mean muon?"),
        ([*SMALL, "--precision", "float16"], "no precision is called 'float16'; did you mean bfloat16?"),
        ([*SMALL, "--gpus", "0"], "--gpus must be at least 1, got 0"),
        ([*SMALL, "--gpus", "many"], "--gpus must be integers separated by commas, got 'many'"),
        ([*SMALL, "--tensor-parallel", "3"], "tensor_parallel must divide the 8 devices of a node, got 3"),
        ([*SMALL, "--tensor-parallel", "8"], "tensor_parallel must divide the 4 key/value heads, got 8"),
        ([*SMALL, "--tensor-parallel", "4", "--gpus", "6"], "must be a multiple of tensor_parallel=4, got 6"),
        ([*SMALL, "--batch-tokens", "32"], "batch_tokens must be at least one row of 64 tokens, got 32"),
        ([*SMALL, "--tokens", "0"], "tokens must be a number above 0, got 0"),
        ([*SMALL, "--network", "0"], "a network must have more than 0 Gb/s for each device, got 0"),
        ([*SMALL, "--set", "model.num_layer=3"], "did you mean model.num_layers?"),
        ([*SMALL, "--set", "train.seed=3"], "a plan takes settings of [model], got train"),
        (["--model", "gpt2", "--context", "4096"], "got model.context_length=1024 for 4096 positions"),
        (["--model", "patchtst"], "a plan is made for models of tokens or of images"),
        (["--model", "gru-attention", "--context", "1024"], "context of at most 128, got 1024"),
        (["--model", "vit", "--context", "7"], "an image has 65 positions here: context must be left out, got 7"),
        (["--model", "lstm", "--tensor-parallel", "2"], "tensor parallelism divides attention"),
        (["--model", "bag", "--activation-checkpointing"], "activation_checkpointing is for models with the blocks"),
    ],
)
def test_what_cannot_be_planned_is_one_line(regard, options: list[str], words: str):
    regard("plan", *options).fails_with(words)
