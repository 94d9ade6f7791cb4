"""The time and memory of a step of alignment with LoRA, compared with trl.

    python benchmarks/align_step.py [--device cpu|cuda] [--method dpo] [--library NAME] [--seconds 10] [--json]

On a GPU the model has the shape of SmolLM2-135M with random weights, in bfloat16, rank 8 on every linear layer; both
libraries read the same checkpoint and tokenizer. DPO: 8 pairs of a prompt of 64 tokens and answers of 192 in an
update. GRPO: 8 prompts with 8 sampled answers of 64 tokens each, one update for each batch of answers, and a reward
that is a function. A step of GRPO includes sampling, the reward, the reference and the update.

trl, which is no dependency, is measured where it is installed (1.16.0 was tried), as its users have it (gradient
checkpointing, transformers' `generate`), and with `gradient_checkpointing=False`. regard is measured with activation
checkpointing and, for DPO, the pairs of an update in four parts with accumulated gradients, which a CUDA graph makes
cheap; and with all pairs at once. trl in four parts is measured too. Each contender runs in a process of its own, so
that the peak of memory is its own. A speedup above 1 means that regard (the first row) is faster, a ratio of memory
below 1 that it needs less.
"""

import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.harness import make_parser, parse, print_results
from lora_step import ALPHA, RANK, SMOLLM2, peak_bytes, resident_bytes

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "intermediate_size": 64, "vocab_size": 500}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "cuda": {"config": SMOLLM2, "prompt": 64, "answer": 192, "pairs": 8, "prompts": 8, "samples": 8, "sampled": 64},
    "cpu": {"config": {**SMOLLM2, **SMALL}, "prompt": 16, "answer": 32, "pairs": 8, "prompts": 4, "samples": 4,
            "sampled": 16},
    "tiny": {"config": {**SMOLLM2, **SMALL, "hidden_size": 16}, "prompt": 3, "answer": 4, "pairs": 2, "prompts": 2,
             "samples": 2, "sampled": 3},
}  # fmt: skip
METHODS = ("dpo", "grpo")
NUM_ROWS, LEARNING_RATE, WARM_UP, BETA = 400, 1e-5, 3, 0.1
PARTS = 4
"""Of the pairs of an update."""
Times = tuple[list[float], float]
"""The seconds of each step, and the peak of memory in bytes."""


def reward(prompt: str, answer: str) -> float:
    """The share of an answer's words that end in an even digit; `regard` calls it by its name."""
    words = answer.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


def write_checkpoint(shape: dict[str, Any], folder: Path) -> None:
    """A checkpoint with random weights and a tokenizer of words, in the layout of transformers."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    size = shape["config"]["vocab_size"]
    words = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(size - 3))]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape["config"], bos_token_id=1, eos_token_id=2, pad_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def make_rows(shape: dict[str, Any]) -> list[dict[str, str]]:
    """Prompts with two answers, of equal lengths."""
    rng = np.random.default_rng(0)

    def text(length: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(0, shape["config"]["vocab_size"] - 3, length))

    lengths = {"prompt": shape["prompt"], "chosen": shape["answer"], "rejected": shape["answer"]}
    return [{name: text(length) for name, length in lengths.items()} for _ in range(NUM_ROWS)]


def ours(
    method: str, shape: dict[str, Any], device: str, seconds: float, *, checkpoint: Path, folder: Path, parts: int,
    checkpointing: bool,
) -> Times:  # fmt: skip
    import regard
    from regard.data.sources import NamedRows
    from regard.runs.finetune import set_up_finetuning

    regard.import_model(checkpoint, folder / "run")
    rows = make_rows(shape)
    # A batch is as many rows as fit by their longest text: an answer and its end token.
    parts = min(parts, shape["pairs"]) if method == "dpo" else 1
    batch_tokens = shape["pairs"] // parts * (max(shape["prompt"], shape["answer"] + 1) + 1)
    values: dict[str, Any] = {
        "data": {"train": ["rows"], "splits": [0.95, 0.05, 0.0]},
        "train": {"device": device, "max_steps": 10_000, "learning_rate": LEARNING_RATE,
                  "batch_tokens": batch_tokens, "accumulate": parts, "activation_checkpointing": checkpointing},
        "task": {"name": "preference-optimization", "method": method, "evaluation_answers": 2, "beta": BETA},
        "finetune": {"lora": {"rank": RANK, "alpha": ALPHA}},
    }  # fmt: skip
    if method == "grpo":
        values["task"] |= {"reward": "align_step:reward", "prompts": shape["prompts"], "samples": shape["samples"],
                           "max_tokens": shape["sampled"], "updates": 1}  # fmt: skip
    _, _, trainer = set_up_finetuning(folder / "run", values, method="lora", rows=NamedRows(rows))
    if method == "dpo" and (num_pairs := parts * len(trainer.training_batch(0).tokens)) != shape["pairs"]:
        raise SystemExit(f"an update has {num_pairs} pairs instead of {shape['pairs']}")
    return timed(trainer.advance, device, seconds)


def timed(step: Callable[[], None], device: str, seconds: float) -> Times:
    """The time of each step after the first ones."""
    before = resident_bytes() if device == "cpu" else 0.0
    times: list[float] = []
    began, count = 0.0, 0
    while count < WARM_UP + 1 or time.perf_counter() - began < seconds:
        count += 1
        if count == WARM_UP + 1:
            began = time.perf_counter()
        start = now(device)
        step()
        times.append(now(device) - start)
    peak = float(torch.cuda.max_memory_allocated()) if device == "cuda" else peak_bytes() - before
    return times[WARM_UP:], peak


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def trls(
    method: str, shape: dict[str, Any], device: str, seconds: float, *, checkpoint: Path, folder: Path, parts: int,
    checkpointing: bool,
) -> Times:  # fmt: skip
    """Trl's own trainer, whose steps are timed by a callback; it is stopped after the given seconds."""
    import datasets  # pyright: ignore[reportMissingImports]  where it is installed
    import peft
    import transformers
    import trl  # pyright: ignore[reportMissingImports]  where it is installed

    times: list[float] = []
    before = resident_bytes() if device == "cpu" else 0.0

    class Clock(transformers.TrainerCallback):
        """Notes the seconds of each step, and stops the training."""

        began = start = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.start = now(device)
            if state.global_step == WARM_UP:
                self.began = self.start

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(now(device) - self.start)
            if len(times) > WARM_UP and time.perf_counter() - self.began > seconds:
                control.should_training_stop = True

    shared: dict[str, Any] = {
        "output_dir": str(folder / "trl"), "max_steps": 10_000, "learning_rate": LEARNING_RATE, "beta": BETA,
        "bf16": device == "cuda", "use_cpu": device == "cpu", "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": checkpointing,
    }  # fmt: skip
    lora = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules="all-linear", task_type="CAUSAL_LM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    table = datasets.Dataset.from_list(make_rows(shape))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16 if device == "cuda" else None
    )
    if method == "dpo":
        config = trl.DPOConfig(
            per_device_train_batch_size=shape["pairs"] // parts, gradient_accumulation_steps=parts, max_length=None,
            **shared,
        )  # fmt: skip
        trainer = trl.DPOTrainer(
            model, args=config, train_dataset=table, processing_class=tokenizer, peft_config=lora, callbacks=[Clock()]
        )
    else:
        config = trl.GRPOConfig(
            per_device_train_batch_size=shape["prompts"] * shape["samples"], num_generations=shape["samples"],
            max_completion_length=shape["sampled"], num_iterations=1, gradient_accumulation_steps=1, **shared,
        )  # fmt: skip

        def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
            return [reward(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]

        trainer = trl.GRPOTrainer(
            model, reward_funcs=rewards, args=config, train_dataset=table.select_columns(["prompt"]),
            processing_class=tokenizer, peft_config=lora, callbacks=[Clock()],
        )  # fmt: skip
    trainer.train()
    peak = float(torch.cuda.max_memory_allocated()) if device == "cuda" else peak_bytes() - before
    return times[WARM_UP:], peak


CONTENDERS: dict[str, Callable[..., Times]] = {
    "regard": partial(ours, parts=PARTS, checkpointing=True),
    "regard, at once": partial(ours, parts=1, checkpointing=True),
    "regard, no checkpointing": partial(ours, parts=1, checkpointing=False),
    "trl": partial(trls, parts=1, checkpointing=True),
    "trl, no checkpointing": partial(trls, parts=1, checkpointing=False),
    "trl, in parts": partial(trls, parts=PARTS, checkpointing=True),
}
ONLY_DPO = ("regard, at once", "trl, in parts")
"""Which for GRPO, without parts, are the same as others."""


def measured(library: str, method: str, options: Any, checkpoint: Path) -> dict[str, float]:
    """The median time of a step, and the peak of memory."""
    logging.basicConfig(level=logging.ERROR)
    shape = SHAPES[options.size]
    with tempfile.TemporaryDirectory() as place:
        times, peak = CONTENDERS[library](
            method, shape, options.device, options.seconds, checkpoint=checkpoint, folder=Path(place)
        )
    ms = [1e3 * time for time in times]
    return {"ms": statistics.median(ms), "fastest_ms": min(ms), "mib": peak / 2**20, "steps": len(times)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("--method", choices=METHODS, action="append", help="this method only")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each library")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON, after each method")
    parser.add_argument("--library", choices=list(CONTENDERS), action="append", help="this one only, beside the first")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="measure one library in this process, and print JSON")
    options = parse(parser, arguments)
    methods = options.method or METHODS
    if options.checkpoint:
        print(json.dumps(measured(options.library[0], methods[0], options, Path(options.checkpoint))))
        return
    with tempfile.TemporaryDirectory() as place:
        write_checkpoint(SHAPES[options.size], Path(place))
        compare(options, methods, Path(place))


def compare(options: Any, methods: Sequence[str], checkpoint: Path) -> None:
    """Measure each library in turns, and print the rows."""

    def turn(library: str, method: str) -> dict[str, float]:
        if options.tiny:  # in this process: starting another takes longer than all the rest
            return measured(library, method, options, checkpoint)
        command = [sys.executable, __file__, "--checkpoint", str(checkpoint), "--library", library, "--method", method]
        command += ["--device", options.device, "--seconds", str(options.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:  # the others are measured all the same
            print(f"{library}, {method}: {done.stderr[-2_000:]}", file=sys.stderr, flush=True)
            return {"ms": math.nan, "fastest_ms": math.nan, "mib": math.nan, "steps": 0}
        return json.loads(done.stdout.splitlines()[-1])

    has_trl = find_spec("trl") is not None and not options.tiny
    results = []
    for method in methods:
        libraries = [name for name in CONTENDERS if has_trl or not name.startswith("trl")]
        libraries = [name for name in libraries if method == "dpo" or name not in ONLY_DPO]
        chosen = ["regard", *(options.library or libraries)]
        libraries = [name for name in libraries if name in chosen]
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in libraries}
        for _ in range(1 if options.tiny else options.rounds):
            for name in libraries:
                turns[name].append(turn(name, method))
        found = {
            name: {key: statistics.median(each[key] for each in some) for key in some[0]}
            for name, some in turns.items()
        }
        for name, each in found.items():
            speedup, memory = each["ms"] / found["regard"]["ms"], found["regard"]["mib"] / each["mib"]
            results.append({"method": method, "library": name, **each, "speedup": speedup, "memory_ratio": memory})
            if not options.json:
                figures = f"{each['ms']:9.1f} ms  {speedup:5.2f}x  {each['mib']:8,.0f} MiB  {memory:5.2f}x"
                print(f"{method:5} {name:25} {figures}", flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps({"torch": torch.__version__, "results": results}), encoding="utf-8")
    if not (has_trl or options.tiny):
        print("trl is not installed, and was not measured")
    print_results(options, results, rank=RANK)


if __name__ == "__main__":
    main()
