"""The time and memory of a training step of LoRA, compared with peft and transformers.

    python benchmarks/lora_step.py [--device cpu|cuda] [--seconds 10] [--rounds 3] [--json]

On a CPU the shape is that of all-MiniLM-L6-v2 with a head for two labels (32 texts of 64 tokens), on a GPU that of
SmolLM2-135M as a language model (16 windows of 512 tokens, in bfloat16). Rank 8 on every linear layer of the body,
AdamW, clipped gradients, random weights. Each library runs in a process of its own, in turns, so that the peak of
memory is its own: on a CPU that of the process above what it had before the first step, on a GPU that of the card.
A speedup above 1 means that regard is faster, a ratio of memory below 1 that it needs less.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from common.harness import Step, make_parser, parse, print_results, regard_step, seconds_of

RANK, ALPHA, LEARNING_RATE = 8, 16.0, 1e-4
MINILM: dict[str, Any] = {
    "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1_536, "max_position_embeddings": 512,
}  # fmt: skip
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49_152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1_536, "tie_word_embeddings": True, "max_position_embeddings": 2_048,
}  # fmt: skip
TINY = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SHAPES = {
    "cpu": ("MiniLM, 32 x 64 tokens", MINILM, (32, 64)),
    "cuda": ("SmolLM2-135M, 16 x 512 tokens", SMOLLM2, (16, 512)),
    "tiny": ("tiny, 3 x 5 tokens", {**MINILM, **TINY}, (3, 5)),
}
"""The name, the configuration in the words of transformers, and the shape of a batch."""


def random_tokens(size: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of a batch, and a label for each row."""
    torch.manual_seed(0)
    _, config, shape = SHAPES[size]
    return (
        torch.randint(4, config["vocab_size"], shape, device=device),
        torch.randint(0, 2, shape[:1], device=device),
    )


def ours(size: str, device: str) -> Step:
    from regard.adapters.lora import LoraConfig, add_lora
    from regard.interop.hf.bert import BERT
    from regard.interop.hf.llama import LLAMA
    from regard.models.family import build_model
    from regard.models.heads import HeadConfig, SequenceClassifier
    from regard.tasks.language_modeling import WindowBatch
    from regard.tasks.text import TextBatch
    from regard.training.precision import choose_hardware

    lora, config = LoraConfig(rank=RANK, alpha=ALPHA), SHAPES[size][1]
    tokens, labels = random_tokens(size, device)
    if device == "cpu":
        shape = BERT.read_config(config)
        model = SequenceClassifier(shape, HeadConfig(pooling="first"), config["vocab_size"], 2)
        add_lora(model.body, lora)
        weights = torch.ones(len(labels))
        segments = torch.zeros_like(tokens)
        task = "text-classification"
        batch = TextBatch(tokens, None, segments, labels, weights, len(labels), tokens.numel())
    else:
        shape = LLAMA.read_config(config)
        model = build_model(shape, config["vocab_size"])
        add_lora(model, lora)
        task, batch = "language-modeling", WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
    hardware = choose_hardware(device, "float32" if device == "cpu" else "auto", shape.model_dim)
    adam = {"betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.01}
    return regard_step(model, shape, task, batch, hardware, adam)


def theirs(size: str, device: str) -> Step:
    import peft
    import transformers

    config = SHAPES[size][1]
    tokens, labels = random_tokens(size, device)
    if device == "cpu":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**config, num_labels=2))
        kind, targets = "SEQ_CLS", r".*encoder\.layer\..*\.(query|key|value|dense)"
    else:
        model, labels = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, use_cache=False)), tokens
        kind, targets = "CAUSAL_LM", "all-linear"
    settings = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=targets, task_type=kind)
    model = peft.get_peft_model(model, settings).to(device).train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.01, fused=True)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


CONTENDERS: dict[str, Callable[[str, str], Step]] = {"regard": ours, "peft": theirs}


def measured(library: str, size: str, device: str, seconds: float) -> dict[str, float]:
    """The median time of a step, and the peak of memory that steps need."""
    step = CONTENDERS[library](size, device)
    before = resident_bytes() if device == "cpu" else 0.0
    seconds_of(step, device=device, calls=6)
    times, begun = [], time.perf_counter()
    while not times or time.perf_counter() - begun < seconds:
        times.append(seconds_of(step, device=device))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes() - before
    return {"ms": 1e3 * statistics.median(times), "mib": peak / 2**20}


def resident_bytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * float(resource.getpagesize())


def peak_bytes() -> float:
    return 1_024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each library")
    parser.add_argument("--only", choices=list(CONTENDERS), help="measure this library in this process, and print JSON")
    options = parse(parser, arguments)
    if options.only:
        print(json.dumps(measured(options.only, options.size, options.device, options.seconds)))
        return

    def turn(name: str) -> dict[str, float]:
        if options.tiny:  # in this process: starting another takes longer than all the rest
            return measured(name, options.size, options.device, options.seconds)
        command = [sys.executable, __file__, "--only", name, "--device", options.device]
        command += ["--seconds", str(options.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    turns: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(1 if options.tiny else options.rounds):
        for name in CONTENDERS:
            turns[name].append(turn(name))
    found = {
        name: {key: statistics.median(turn[key] for turn in some) for key in some[0]} for name, some in turns.items()
    }
    shape, results = SHAPES[options.size][0], []
    for name, each in found.items():
        speedup, memory = each["ms"] / found["regard"]["ms"], found["regard"]["mib"] / each["mib"]
        results.append({"shape": shape, "library": name, **each, "speedup": speedup, "memory_ratio": memory})
        if not options.json:
            print(f"{shape}  {name:8} {each['ms']:8.1f} ms  {speedup:5.2f}x  {each['mib']:8,.0f} MiB  {memory:5.2f}x")
    print_results(options, results, rank=RANK)


if __name__ == "__main__":
    main()
