"""Every benchmark script works: at a tiny size it measures all that it should, and prints it as JSON.

The scripts run in this process, which has imported PyTorch and transformers already. Their times have no meaning here;
the rows, and what the libraries compute, have.
"""

import importlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shape_checks import unchecked_shapes

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
Rows = list[dict[str, Any]]
Run = Callable[..., Rows]

pytestmark = [
    pytest.mark.slow,
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a script with `--tiny --json`; returns its results."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # a handler would outlive the test
    torch.set_default_dtype(torch.float32)
    threads = torch.get_num_threads()

    def run(name: str, *options: str) -> Rows:
        importlib.import_module(name).main(["--tiny", "--json", *options])
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["torch"] == torch.__version__
        assert found["machine"]
        assert found["results"]
        return found["results"]

    yield run
    torch.set_num_threads(threads)


def require_times(rows: Rows, *names: str) -> None:
    """Each of these figures of each row is a positive number."""
    for row in rows:
        for name in names:
            assert math.isfinite(row[name]), (name, row)
            assert row[name] > 0, (name, row)


def test_each_script_has_a_smoke_test():
    tested = set(re.findall(r'\brun\("(\w+)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested | {"gpu"} == set(SCRIPTS)


def test_train_step(run: Run):
    rows = run("train_step")
    assert [row["library"] for row in rows] == ["regard", "torch.nn.Transformer", "transformers Marian"]
    require_times(rows, "ms", "target_tokens_per_s", "speedup")


def test_recurrent_step(run: Run):
    rows = run("recurrent_step")
    libraries = ["regard", "torch.nn.LSTM, plain loop"]
    assert [(row["attention"], row["library"]) for row in rows] == [
        (attention, library) for attention in ("none", "luong") for library in libraries
    ]
    require_times(rows, "ms", "tokens_per_s", "speedup")


def test_vit_step(run: Run):
    rows = run("vit_step")
    assert [row["library"] for row in rows] == ["regard", "transformers ViT"]
    require_times(rows, "ms", "images_per_s", "speedup")
    script = importlib.import_module("vit_step")
    for shape in script.TINY_SHAPES.values():
        ours, theirs = script.regard_vit(shape)[0], script.transformers_vit(shape)
        counts = [sum(weight.numel() for weight in model.parameters()) for model in (ours, theirs)]
        assert counts[0] == counts[1]


def test_train_text(run: Run):
    rows = run("train_text")
    assert [row["library"] for row in rows] == ["regard", "transformers GPT2"]
    require_times(rows, "ms", "tokens_per_s", "first_step_s", "speedup")


def test_lora_step(run: Run):
    rows = run("lora_step")
    assert [row["library"] for row in rows] == ["regard", "peft"]
    require_times(rows, "ms", "speedup")


def test_align_step(run: Run):
    rows = run("align_step")
    libraries = [(row["method"], row["library"].removeprefix("regard")) for row in rows]
    assert libraries == [
        *(("dpo", name) for name in ("", ", at once", ", no checkpointing")),
        *(("grpo", name) for name in ("", ", no checkpointing")),
    ]
    assert all(row["ms"] > 0 for row in rows)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@unchecked_shapes()  # FlexAttention is traced
def test_gpu_check(run: Run):
    rows = run("gpu_check")
    assert {row["check"] for row in rows} == {"windows", "step", "dpo"}
    assert all(row["holds"] for row in rows)


def test_generate(run: Run):
    rows = run("generate")
    for shape in ("GPT-2, tiny", "Llama, tiny"):
        assert {"regard", "transformers, dynamic"} <= {row["library"] for row in rows if row["shape"] == shape}
    require_times(rows, "ms_per_step", "tokens_per_s", "speedup")


def test_translate_gives_the_same_outputs_as_its_peer(run: Run):
    rows = run("translate")
    libraries = ["regard", "regard, 8 bits", "transformers Marian", "CTranslate2, 8 bits"]
    assert [(row["beam"], row["library"]) for row in rows] == [(beam, name) for beam in (1, 5) for name in libraries]
    require_times(rows, "tokens_per_s", "speedup")
    exact = [row["agreement"] for row in rows if "8 bits" not in row["library"]]
    assert exact == [1.0] * 4


def test_long_context(run: Run):
    rows = run("long_context")
    training, decoding, quality = (
        [row for row in rows if row["work"] == work] for work in ("training", "decoding", "text")
    )
    assert {(row["attention"], row["length"]) for row in training} == {
        (a, n) for a in ("full", "window") for n in (32, 64)
    }
    require_times(training, "ms", "ratio")
    cached = {(row["attention"], row["length"]): row["cache_bytes"] for row in decoding}
    assert cached["linear", 32] == cached["linear", 64]
    assert cached["window", 32] == cached["window", 64]
    assert cached["full", 64] == 2 * cached["full", 32]
    require_times(decoding, "ms_per_token")
    for row in quality:
        assert row["low"] <= row["perplexity"] <= row["high"]


def test_context(run: Run, tmp_path: Path):
    rows = run("context", "--draw", str(tmp_path / "context.png"))
    trained, generated = ([row for row in rows if row["work"] == work] for work in ("training", "generation"))
    assert len(trained) == len(generated) == 2
    require_times(trained, "length", "tokens_per_s")
    require_times(generated, "length", "ms_per_token", "cache_mib")
    assert generated[1]["cache_mib"] / generated[0]["cache_mib"] == generated[1]["length"] / generated[0]["length"]
    assert (tmp_path / "context.png").stat().st_size > 10_000


def test_plan(run: Run):
    rows = run("plan")
    assert len(rows) == 2
    require_times(rows, "ms", "planned_ms", "time_ratio", "planned_gib", "tokens_per_s")


def test_load_gives_the_same_outputs_as_its_peer(run: Run):
    rows = run("load")
    assert [row["library"] for row in rows] == ["regard", "transformers"] * 2
    require_times(rows, "seconds", "speedup")
    vectors = [[float(number) for number in row["output"].strip("[]").split()] for row in rows[:2]]
    assert len(vectors[0]) == 3
    assert vectors[0] == pytest.approx(vectors[1], rel=1e-4)
    assert rows[2]["output"] == rows[3]["output"] != ""


def test_distributed(run: Run):
    rows = run("distributed")
    processes = ["one process", "two processes"]
    assert [row["form"] for row in rows] == [*processes, "two processes, torch's DDP", "two processes, sharded"]
    require_times(rows, "seconds", "tokens_per_s", "speedup")
    for row in rows:  # the batch is that of one process
        assert row["tokens_per_s"] * row["seconds"] == pytest.approx(rows[0]["tokens_per_s"] * rows[0]["seconds"])


def test_memory(run: Run):
    (row,) = run("memory")
    require_times([row], "rows", "seconds", "RssAnon_mib", "RssFile_mib", "VmHWM_mib")


def test_checkpointing(run: Run):
    (row,) = run("checkpointing")
    assert row["megabytes"] > 0.1
    require_times([row], "step_s", "wait_s", "write_s", "work_s", "waited_steps", "waited", "worked", "synchronous")
    assert row["wait_s"] <= row["write_s"]


def test_shakespeare(run: Run):
    (row,) = run("shakespeare")
    assert [step for step, _, _ in row["evaluations"]] == [2, 4]
    assert row["steps"] == 4
    assert row["best"] == min(loss for _, _, loss in row["evaluations"])
    assert 0 < row["reached_s"] < row["wall_s"]


def test_sweep(run: Run):
    (row,) = run("sweep")
    assert (row["workers"], row["trials"]) == (1, 2)
    assert 0.0 <= row["best"] <= 1.0
    require_times([row], "seconds", "seconds_per_trial", "speedup")


def test_align(run: Run):
    reward, *policies, parting = run("align")
    assert 0.0 < reward["share"] <= 1.3
    assert [row["model"] for row in policies] == ["supervised", "dpo", "ppo", "over-optimized"]
    for row in policies[1:]:
        assert row["gain_interval"][0] <= row["gain"] <= row["gain_interval"][1]
    assert len(parting["table"]) > 1


def test_quality(run: Run):
    rows = run("quality")
    assert [row["row"] for row in rows] == list(importlib.import_module("quality").ROWS)
    for row in rows:
        tests = {"test_2016_flickr", "test_2017_flickr"} if row["row"].startswith("multi30k") else {"test"}
        assert row["scores"].keys() == tests
        for score in row["scores"].values():
            low, high = score["interval"]
            assert low <= score["value"] <= high


def test_defaults(run: Run):
    results = run("defaults")
    assert [row["row"] for row in results] == ["trec", "conll2000", "lemmas", "shakespeare"]
    assert all(row["steps"] == 2 and row["verdict"] in ("better", "not significant", "worse") for row in results)


def test_defaults_and_choices_by_hand(run: Run):
    results = run("defaults", "--by-hand", "--row", "trec")
    assert [row["choice"] for row in results] == [None, "lstm-small", "convolution", "transformer, slow"]
    assert len({row["model"] for row in results}) == 4


def test_beyond_text(run: Run):
    rows = {row["row"]: row for row in run("beyond_text")}
    kinds = importlib.import_module("beyond_text").KINDS
    assert list(rows) == [row for kind in kinds for row in kind.TINY_ROWS]
    for name in ("etth1-96", "etth2-96"):
        assert rows[name]["mse"] > 0
        assert 0 <= rows[name]["coverage"] <= 1
    require_times([rows["training"]], "windows_per_s")
    require_times([rows["forecasting"], rows["forecasting-by-defaults"]], "seconds")
    patients, flickr = rows["patients"], rows["flickr8k"]
    assert patients["distance"] == patients["truth"] - patients["log_likelihood"] > 0
    assert 0.0 < rows["scenes"]["pointing"] < 1.0
    assert flickr["difference"] == pytest.approx(flickr["bleu"] - flickr["one_vector"])
    scores = {"mnist-pixels": "bits_per_dimension", "esol-message-passing": "rmse", "esol": "score", "bbbp": "score"}
    for name, score in scores.items():
        low, high = rows[name]["interval"]
        assert low <= rows[name][score] <= high
    assert all(1 <= rows["cartpole"][name] <= 500 for name in ("mean_return", "cloned", "recorded"))


def test_instructions(run: Run):
    (row,) = run("instructions")
    assert 0.0 <= row["format"] <= 1.0
    require_times([row], "perplexity_before", "perplexity_after", "answer_perplexity")
    assert row["perplexity_change"] == pytest.approx(row["perplexity_after"] / row["perplexity_before"] - 1)
    script = importlib.import_module("kinds.instructions")
    pairs = script.generate_instructions(97, 0)
    assert len({prompt for prompt, _ in pairs}) == 97
    assert all(re.fullmatch(script.FORMAT, answer) for _, answer in pairs)


def test_pictures(run: Run):
    rows = run("pictures")
    assert [row["row"] for row in rows] == ["mnist-cnn", "mnist-vit", "cifar10-cnn", "cifar10-vit"]
    assert [row["model"] for row in rows] == ["cnn-tiny", "vit-tiny"] * 2
    assert all(0.0 <= row["interval"][0] <= row["accuracy"] <= row["interval"][1] for row in rows)


def test_finetune(run: Run):
    rows = run("finetune")
    assert [row["row"] for row in rows] == list(importlib.import_module("finetune").ROWS)
    metrics = {"conll": "entity_f1", "squad": "answer_f1"}
    for row in rows:
        (found,) = row["seeds"]
        assert 0.0 <= found[metrics.get(row["row"].split("-")[0], "accuracy")] <= 1.0


@pytest.mark.usefixtures("run")
def test_gpu_runs_its_scripts_with_options_that_they_have(capsys: pytest.CaptureFixture[str]):
    gpu = importlib.import_module("gpu")
    quick = [name for name in gpu.ROWS if name not in ("shakespeare", "quality")]
    gpu.main(["--tiny", "--json", *(part for name in quick for part in ("--script", name))])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == len(quick) == 8
    assert all(each["results"] for each in printed)


def test_parsing(run: Run):
    rows = run("parsing")
    assert [row["row"] for row in rows] == ["scratch", "linear", "pretrained"]
    require_times(rows, "seconds", "processor_seconds", "goal")
    assert [row["well_formed"] for row in rows] == [1.0] * 3
    assert all(0 <= row["f1"] <= 1 for row in rows)
