"""The speed of sequence-to-sequence generation, compared with transformers' Marian and, on a CPU, with CTranslate2.

    python benchmarks/translate.py [--device cpu|cuda] [--threads 1] [--json]

Measures how many tokens per second an encoder-decoder generates, greedily and with a beam of 5; CTranslate2 has
8-bit weights. All libraries have the same random weights, with which the end token is never the best, so that all
generate the same number of tokens. They are measured in turns of shuffled order; a figure is the median. A speedup
above 1 means that regard is faster; the agreement is the share of outputs that are those of regard.

CTranslate2 is not measured where it is not installed: pip install ctranslate2
"""

import copy
import importlib.util
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import nn

from common.harness import make_parser, median_times, parse, print_results
from regard.data.codecs.text import TextCodec
from regard.generation.config import GenerationConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.inference import prepare_for_inference
from regard.tasks.seq2seq import Seq2Seq, Seq2SeqSettings
from regard.text.tokenizer import Tokenizer
from regard.training.precision import threads

SHAPES = {
    "cpu": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024},
    "cuda": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
    "tiny": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 32},
}
VOCAB, SENTENCES = {"cpu": 10_000, "cuda": 32_000, "tiny": 50}, {"cpu": 64, "cuda": 64, "tiny": 3}
SHORTEST = {"cpu": 12, "cuda": 63, "tiny": 4}
LONGEST = {"cpu": 28, "cuda": 63, "tiny": 7}
"""Tokens of a source, the end token not counted."""
GENERATED = {"cpu": 32, "cuda": 64, "tiny": 5}
"""Tokens of each output."""
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
Translate = Callable[[Sequence[Sequence[int]], int], list[list[int]]]
"""Sources and the size of the beam in, outputs out."""


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer whose words are the ids of their tokens."""
    names = {PAD: "<pad>", END: "</s>", START: "<s>"}
    vocabulary = {names.get(token, str(token)): token for token in range(vocab_size)}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(inner)


@torch.no_grad()
def make_marian(shape: dict[str, int], vocab_size: int) -> Any:
    """Random weights with which the end token is never the best."""
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
    # The first number of each last hidden state is 5: it adds nothing to the logit of a word, and -500 to the end's.
    last.weight[0], last.bias[0] = 0.0, 5.0
    embedding[:, 0] = 0.0
    embedding[END, 0] = -100.0
    return model.eval()


def make_ours(marian: Any, shape: dict[str, int], vocab_size: int) -> Transformer:
    """The same weights in regard's model."""
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


def regard(model: Transformer, tokenizer: Tokenizer, num_new: int) -> Translate:
    task = Seq2Seq(Seq2SeqSettings.draft({}), {"text": TextCodec(tokenizer)})
    predictors = {beam: task.predictor(model, GenerationConfig(beam_size=beam, max_tokens=num_new)) for beam in BEAMS}

    def translate(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        texts = [" ".join(map(str, source)) for source in sources]
        return tokenizer.encode([prediction.output for prediction in predictors[beam](texts)])

    return translate


def transformers(model: Any, num_new: int) -> Translate:
    def translate(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        width = max(len(source) for source in sources) + 1
        rows = [[*source, END, *[PAD] * (width - 1 - len(source))] for source in sources]
        mask = [[1] * (len(source) + 1) + [0] * (width - 1 - len(source)) for source in sources]
        ids, attended = (torch.tensor(table, device=model.device) for table in (rows, mask))
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=attended, max_new_tokens=num_new, num_beams=beam, do_sample=False
            )
        return found[:, 1:].tolist()

    return translate


def ctranslate2(marian: Any, vocab_size: int, num_new: int, num_threads: int) -> Translate:
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

    def translate(sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        rows = [[str(token) for token in [*source, END]] for source in sources]
        found = translator.translate_batch(rows, beam_size=beam, max_decoding_length=num_new)
        return [[int(word) for word in each.hypotheses[0]] for each in found]

    return translate


def contenders(size: str, device: str, num_threads: int) -> dict[str, Translate]:
    shape, vocab_size, num_new = SHAPES[size], VOCAB[size], GENERATED[size]
    tokenizer, marian = make_tokenizer(vocab_size), make_marian(shape, vocab_size)
    ours = make_ours(marian, shape, vocab_size)
    if device == "cuda":
        marian, ours = marian.to("cuda", torch.bfloat16), prepare_for_inference(ours.to("cuda"), "bfloat16")
        return {"regard": regard(ours, tokenizer, num_new), "transformers Marian": transformers(marian, num_new)}
    found = {
        "regard": regard(prepare_for_inference(ours, "float32"), tokenizer, num_new),
        "regard, 8 bits": regard(prepare_for_inference(ours, "float32", quantization="int8"), tokenizer, num_new),
        "transformers Marian": transformers(marian, num_new),
    }
    if importlib.util.find_spec("ctranslate2") is not None:
        found["CTranslate2, 8 bits"] = ctranslate2(marian, vocab_size, num_new, num_threads)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="of each library, on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser, arguments)
    rounds = 1 if options.tiny else options.rounds
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    size, device = options.size, options.device
    rng, num_new = random.Random(1), GENERATED[size]
    sources = [
        [rng.randrange(FIRST_WORD, VOCAB[size]) for _ in range(rng.randint(SHORTEST[size], LONGEST[size]))]
        for _ in range(SENTENCES[size])
    ]
    results = []
    with threads(options.threads):
        translators = contenders(size, device, options.threads)
        for beam in BEAMS:
            outputs = {name: translate(sources, beam) for name, translate in translators.items()}
            for name, found in outputs.items():
                assert all(len(output) == num_new for output in found), f"{name} has stopped early"
            works = {name: lambda t=t, b=beam: t(sources, b) for name, t in translators.items()}
            times = median_times(works, rounds=rounds, warm_up=1)
            for name, seconds in times.items():
                speed, speedup = len(sources) * num_new / seconds, seconds / times["regard"]
                same = [mine == theirs for mine, theirs in zip(outputs["regard"], outputs[name], strict=True)]
                figures = {"tokens_per_s": speed, "speedup": speedup, "agreement": sum(same) / len(same)}
                results.append({"beam": beam, "library": name, **figures})
                if not options.json:
                    print(f"beam {beam}  {name:22} {1e3 * seconds:9.1f} ms  {speed:9,.0f} tokens/s  {speedup:5.2f}x")
    print_results(options, results, threads=options.threads)


if __name__ == "__main__":
    main()
