"""Translating beside peers: the same weights, sentences and machine, in one run.

    python benchmarks/translate.py [--device cpu|cuda] [--threads 1] [--json]

Measures how many tokens a second an encoder-decoder writes, greedily and with a
beam of 5, in regard, in transformers' Marian classes and, on a CPU, in
CTranslate2 with weights of 8 bits. The weights are random and the end is made
impossible, so that all write the same number of tokens. The libraries take
turns in a shuffled order, so that a machine that slows down slows all of them
down; a figure is the median. Ratios above 1 say that regard is faster.

CTranslate2 is left out where it is not installed: pip install ctranslate2
"""

import argparse
import copy
import importlib.util
import json
import platform
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from regard.generation.config import GenerationConfig
from regard.generation.inference import ready
from regard.generation.quantization import quantized
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.translation import Translation
from regard.training.precision import threads

SHAPES = {
    "cpu": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024},
    "cuda": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
}
VOCAB, SENTENCES = {"cpu": 10_000, "cuda": 32_000}, 64
SHORTEST, LONGEST, WRITTEN = {"cpu": 12, "cuda": 63}, {"cpu": 28, "cuda": 63}, {"cpu": 32, "cuda": 64}
"""Tokens that are read, their end not counted, and that are written."""
PAD, END, START, FIRST_WORD = 0, 1, 2, 3
POSITIONS = 128
BEAMS = (1, 5)
NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "self_attn_layer_norm": "attention_norm",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_attention_norm",
    "fc1": "feedforward.input",
    "fc2": "feedforward.output",
    "final_layer_norm": "feedforward_norm",
}
Write = Callable[[Sequence[Sequence[int]], int], list[list[int]]]
"""Sources and a beam's width in, what is written out."""


class Numbers:
    """A tokenizer whose words are the ids."""

    pad, start, end = PAD, START, END

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, sequences: Any) -> list[str]:
        return [" ".join(str(token) for token in tokens) for tokens in sequences]


@torch.no_grad()
def make_marian(shape: dict[str, int], vocab_size: int) -> Any:
    """Random weights with which the end never comes."""
    from transformers import MarianConfig, MarianMTModel

    layers, heads, wide, width = shape["num_layers"], shape["num_heads"], shape["feedforward_dim"], shape["model_dim"]
    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size, d_model=width, encoder_layers=layers, decoder_layers=layers,
            encoder_ffn_dim=wide, decoder_ffn_dim=wide, encoder_attention_heads=heads, decoder_attention_heads=heads,
            activation_function="relu", max_position_embeddings=POSITIONS, scale_embedding=True,
            pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=None,
        )
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed_positions" not in name:
            nn.init.xavier_uniform_(parameter)
    embedding, last = model.model.shared.weight, model.model.decoder.layers[-1].final_layer_norm
    embedding.normal_(std=width**-0.5)
    # The last states are all 5 in one direction, which means nothing to a word and very little good to the end.
    last.weight[0], last.bias[0] = 0.0, 5.0
    embedding[:, 0] = 0.0
    embedding[END, 0] = -100.0
    return model.eval()


def make_ours(marian: Any, shape: dict[str, int], vocab_size: int) -> Transformer:
    config = TransformerConfig.read({**shape, "positions": "learned", "context_length": POSITIONS, "dropout": 0.0})
    shared = marian.model.shared.weight
    weights = {"embedding.weight": shared, "output.weight": shared}
    for side in ("encoder", "decoder"):
        stack = getattr(marian.model, side)
        weights[f"{side}.positions.table.weight"] = stack.embed_positions.weight
        for name, tensor in stack.layers.state_dict().items():
            layer, rest = name.split(".", 1)
            part, kind = rest.rsplit(".", 1)
            weights[f"{side}.blocks.{layer}.{NAMES[part]}.{kind}"] = tensor
    model = Transformer(config, vocab_size)
    model.load_state_dict(weights)
    return model.eval()


def regard(model: Transformer, written: int) -> Write:
    tokenizer: Any = Numbers()
    writers = {
        beam: Translation().writer(model, tokenizer, GenerationConfig(beam_size=beam, max_length=written))
        for beam in BEAMS
    }

    def write(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        found = writers[beam](tokenizer.decode(sources))
        return tokenizer.encode([prediction.output for prediction in found])

    return write


def transformers(model: Any, written: int) -> Write:
    def write(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        width = max(len(source) for source in sources) + 1
        rows = [[*source, END, *[PAD] * (width - 1 - len(source))] for source in sources]
        mask = [[1] * (len(source) + 1) + [0] * (width - 1 - len(source)) for source in sources]
        ids, seen = (torch.tensor(table, device=model.device) for table in (rows, mask))
        with torch.inference_mode():
            found = model.generate(ids, attention_mask=seen, max_new_tokens=written, num_beams=beam, do_sample=False)
        return found[:, 1:].tolist()

    return write


def ctranslate2(marian: Any, vocab_size: int, written: int, num_threads: int) -> Write:
    import ctranslate2 as library
    from ctranslate2.converters.transformers import BartLoader

    marian = copy.deepcopy(marian)
    marian.config.normalize_before = marian.config.normalize_embedding = False
    specification = BartLoader().get_model_spec(marian)
    words = [str(number) for number in range(vocab_size)]
    specification.register_source_vocabulary(words)
    specification.register_target_vocabulary(words)
    config = specification.config
    config.bos_token = config.decoder_start_token = str(START)
    config.eos_token, config.unk_token = str(END), str(FIRST_WORD)
    specification.validate()
    specification.optimize("int8")
    with tempfile.TemporaryDirectory() as folder:
        specification.save(folder)
        translator = library.Translator(folder, device="cpu", compute_type="int8", intra_threads=num_threads)

    def write(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        rows = [[str(token) for token in [*source, END]] for source in sources]
        found = translator.translate_batch(rows, beam_size=beam, max_decoding_length=written)
        return [[int(word) for word in each.hypotheses[0]] for each in found]

    return write


def contenders(device: str, num_threads: int) -> dict[str, Write]:
    shape, vocab_size, written = SHAPES[device], VOCAB[device], WRITTEN[device]
    marian = make_marian(shape, vocab_size)
    ours = make_ours(marian, shape, vocab_size)
    if device == "cuda":
        marian, ours = marian.to("cuda", torch.bfloat16), ready(ours.to("cuda"), "bfloat16")
        return {"regard": regard(ours, written), "transformers Marian": transformers(marian, written)}
    found = {
        "regard": regard(ready(ours, "float32"), written),
        "regard, 8 bits": regard(quantized(ours), written),
        "transformers Marian": transformers(marian, written),
    }
    if importlib.util.find_spec("ctranslate2") is not None:
        found["CTranslate2, 8 bits"] = ctranslate2(marian, vocab_size, written, num_threads)
    return found


def measure(writers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median time of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in writers}
    rng, names = random.Random(0), list(writers)
    for number in range(rounds + 1):
        for name in rng.sample(names, len(names)):
            before = time.perf_counter()
            writers[name]()
            if number:  # the first round makes things ready
                times[name].append(time.perf_counter() - before)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="of each library, on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    device: str = options.device
    rng, written = random.Random(1), WRITTEN[device]
    sources = [
        [rng.randrange(FIRST_WORD, VOCAB[device]) for _ in range(rng.randint(SHORTEST[device], LONGEST[device]))]
        for _ in range(SENTENCES)
    ]
    results = []
    with threads(options.threads):
        writers = contenders(device, options.threads)
        for beam in BEAMS:
            for name, write in writers.items():
                outputs = write(sources, beam)
                assert all(len(output) == written for output in outputs), f"{name} has stopped early"
            times = measure({name: lambda w=w, b=beam: w(sources, b) for name, w in writers.items()}, options.rounds)
            for name, seconds in times.items():
                speed, ratio = SENTENCES * written / seconds, seconds / times["regard"]
                results.append({"beam": beam, "library": name, "tokens_per_s": speed, "regard_is_times_as_fast": ratio})
                if not options.json:
                    print(f"beam {beam}  {name:22} {1e3 * seconds:9.1f} ms  {speed:9,.0f} tokens/s  {ratio:5.2f}x")
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {options.threads} threads"
    described = {"machine": machine, "torch": torch.__version__, "results": results}
    print(json.dumps(described) if options.json else f"{machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
