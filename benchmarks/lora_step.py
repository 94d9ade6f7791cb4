"""A step of LoRA beside peft and transformers: the same shape, settings, data and machine.

    python benchmarks/lora_step.py [--device cpu|cuda] [--seconds 10] [--rounds 3] [--json]

On a CPU the shape is all-MiniLM-L6-v2's with a head for two labels (32 texts of 64
tokens), on a GPU SmolLM2-135M's as a language model (16 windows of 512 tokens, in
bfloat16). Rank 8 on every linear layer of the body, AdamW, gradients clipped;
weights are random. Each library runs in a process of its own, in turns, so that
its peak of memory is its own: that of the process above what it had before the
first step on a CPU, that of the card on a GPU. Ratios of time above 1 say that
regard is faster, ratios of memory below 1 that it takes less.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

RANK, ALPHA, RATE = 8, 16.0, 1e-4
TEXTS, WINDOWS = (32, 64), (16, 512)
MINILM: dict[str, Any] = {
    "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1_536, "max_position_embeddings": 512,
}  # fmt: skip
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49_152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1_536, "tie_word_embeddings": True, "max_position_embeddings": 2_048,
}  # fmt: skip
Step = Callable[[], None]


def regard_step(device: str) -> Step:
    from regard.adapters.lora import LoraConfig, add_lora
    from regard.interop.bert import bert_settings
    from regard.interop.llama import settings as llama_settings
    from regard.models.families import make_model
    from regard.models.heads import Classifier, HeadConfig
    from regard.tasks.classification import Classification
    from regard.tasks.language import Language, TextBatch
    from regard.tasks.reading import TextsBatch
    from regard.training.average import WeightAverage
    from regard.training.optimizers import make_optimizer
    from regard.training.precision import choose_hardware
    from regard.training.settings import TrainConfig
    from regard.training.update import Updater

    lora = LoraConfig(rank=RANK, alpha=ALPHA)
    if device == "cpu":
        shape = bert_settings(MINILM)
        model = Classifier(shape, HeadConfig(pooling="first"), MINILM["vocab_size"], 2)
        add_lora(model.body, lora)
        task, (tokens, labels) = Classification(), texts(device)
        batch = TextsBatch(
            tokens, None, torch.zeros_like(tokens), labels, torch.ones(len(labels)), len(labels), tokens.numel()
        )
    else:
        shape = llama_settings(SMOLLM2)
        model = make_model(shape, SMOLLM2["vocab_size"])
        add_lora(model, lora)
        task, tokens = Language(), windows(device)
        batch = TextBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
    hardware = choose_hardware(device, "float32" if device == "cpu" else "auto", shape.model_dim)
    model.to(hardware.device)
    config = TrainConfig.read({"average": 0.0, "label_smoothing": 0.0})
    optimizer = make_optimizer("adamw", model, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.01)
    updater = Updater(model, task, optimizer, WeightAverage(model, 0.0), config, hardware)

    def step() -> None:
        updater.update([batch], rate=RATE, decay=0.0)

    return step


def peft_step(device: str) -> Step:
    import peft
    import transformers

    if device == "cpu":
        config = transformers.BertConfig(**MINILM, num_labels=2)
        tokens, labels = texts(device)
        model, kind = transformers.BertForSequenceClassification(config), "SEQ_CLS"
        targets = r".*encoder\.layer\..*\.(query|key|value|dense)"
    else:
        config = transformers.LlamaConfig(**SMOLLM2, use_cache=False)
        tokens = labels = windows(device)
        model, kind, targets = transformers.LlamaForCausalLM(config), "CAUSAL_LM", "all-linear"
    settings = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=targets, task_type=kind)
    model = peft.get_peft_model(model, settings).to(device).train()
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(moving, lr=RATE, weight_decay=0.01, fused=True)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(moving, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def texts(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randint(1_000, 30_000, TEXTS, device=device), torch.randint(0, 2, TEXTS[:1], device=device)


def windows(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(4, 49_000, WINDOWS, device=device)


CONTENDERS: dict[str, Callable[[str], Step]] = {"regard": regard_step, "peft": peft_step}


def measured(library: str, device: str, seconds: float) -> dict[str, float]:
    """The median time of a step, and the most memory that steps took."""
    step = CONTENDERS[library](device)
    before = resident() if device == "cpu" else 0.0
    for _ in range(6):
        step()
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    synchronize()
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 1_024.0 * peak_kib() - before
    return {"ms": 1e3 * statistics.median(times), "MiB": peak / 2**20}


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * float(resource.getpagesize())


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="measuring time of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each library")
    parser.add_argument("--only", choices=list(CONTENDERS), help="measure one library here, and print JSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.only, options.device, options.seconds)))
        return
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(options.rounds):
        for name in CONTENDERS:
            own = ["--only", name, "--device", options.device, "--seconds", str(options.seconds)]
            done = subprocess.run([sys.executable, __file__, *own], capture_output=True, text=True, check=True)
            turns[name].append(json.loads(done.stdout.splitlines()[-1]))
    found = {
        name: {key: statistics.median(turn[key] for turn in some) for key in some[0]} for name, some in turns.items()
    }
    ratios = {key: found["peft"]["ms"] / each["ms"] for key, each in found.items()}
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    if options.json:
        print(json.dumps({"machine": machine, "torch": torch.__version__, "results": found, "turns": turns}))
        return
    shape = "MiniLM, 32 x 64 tokens" if options.device == "cpu" else "SmolLM2-135M, 16 x 512 tokens"
    for name, each in found.items():
        memory = each["MiB"] / found["peft"]["MiB"]
        print(f"{shape}  {name:8} {each['ms']:8.1f} ms  {ratios[name]:5.2f}x  {each['MiB']:8,.0f} MiB  {memory:5.2f}x")
    print(f"{machine}, torch {torch.__version__}, rank {RANK} on all linear layers")


if __name__ == "__main__":
    main()
