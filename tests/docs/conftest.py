"""What the tests of the pages share: the pages, their blocks of code, and small data to run them on."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
import torch
from tests.command_line import call

from regard.data.builtin import find_builtin
from regard.interop.gguf.writing import write_gguf
from regard.models.presets import find_preset
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.text.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[2]
WORDS = "a film to remember good bad two hours that i shall not get back"
PAGES = ("tutorial.md", "architecture.md")
"""Those that serve as a text."""


@dataclass(frozen=True)
class Page:
    """A Markdown file of the project."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language, without their fences."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, flags=re.MULTILINE | re.DOTALL)

    def commands(self) -> list[str]:
        """Each `regard ...` command in the shell blocks, without its comment."""
        lines = [line for block in self.blocks("sh") for line in block.splitlines()]
        commands = [re.sub(r"\s+#.*", "", line) for line in lines]
        return [command for command in commands if re.search(r"(^|\| )regard ", command)]

    def short_commands(self) -> list[str]:
        """The same, with budgets of a few steps; without what runs until it is stopped."""
        commands = [command for command in self.commands() if not command.startswith("regard serve ")]
        short = [re.sub(r"--(minutes|steps) \S+( --seeds \d+)?", "--steps 5", command) for command in commands]
        return [re.sub(r"--trials \d+", "--trials 2 --steps 5 --repeats 1", command) for command in short]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for a `page` runs on each of them."""
    if "page" in metafunc.fixturenames:
        paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
        names = [str(path.relative_to(ROOT)) for path in paths]
        metafunc.parametrize("page", [Page(path) for path in paths], ids=names)


@pytest.fixture
def readme() -> Page:
    return Page(ROOT / "README.md")


@pytest.fixture
def text_page() -> Page:
    return Page(ROOT / "docs" / "text.md")


@pytest.fixture
def long_page() -> Page:
    return Page(ROOT / "docs" / "long_context.md")


@pytest.fixture
def series_page() -> Page:
    return Page(ROOT / "docs" / "series.md")


@pytest.fixture
def events_page() -> Page:
    return Page(ROOT / "docs" / "events.md")


@pytest.fixture
def graphs_page() -> Page:
    return Page(ROOT / "docs" / "graphs.md")


@pytest.fixture
def molecules_page() -> Page:
    return Page(ROOT / "docs" / "molecules.md")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with the files that the pages suppose: pairs, inputs, and texts, which are the pages themselves."""
    rows = list(find_builtin("dates").generate(420, 0))
    _write(tmp_path / "pairs.tsv", rows[:400])
    _write(tmp_path / "test.tsv", rows[400:])
    (tmp_path / "space.toml").write_text("[train.learning_rate]\nlow = 1e-4\nhigh = 1e-2\nlog = true\n")
    (tmp_path / "inputs.txt").write_text("4 March 2025\nle 3 mai 1999\n", encoding="utf-8")
    (tmp_path / "in.csv").write_text("id,date\n7,4 March 2025\n8,le 3 mai 1999\n", encoding="utf-8")
    paragraphs = [text for name in PAGES for text in Page(ROOT / "docs" / name).text.split("\n\n") if text.strip()]
    (tmp_path / "essays").mkdir()
    for name, text in {
        "text.txt": "\n\n".join(paragraphs),
        "more.txt": Page(ROOT / "CONTRIBUTING.md").text,
        "one.txt": "\n\n".join(paragraphs[:40]),
        "two.txt": "\n\n".join(paragraphs[40:]),
        "posts.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in paragraphs),
        **{f"essays/{number}.txt": text for number, text in enumerate(paragraphs)},
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def pretrained(workplace: Path) -> Path:
    """A workplace with reviews as well, and with models to import: a tiny encoder, and a tiny GGUF file."""
    transformers = pytest.importorskip("transformers")
    rows = [(f"{word} film number {n}", label) for n in range(60) for word, label in (("good", "good"), ("bad", "bad"))]
    for name, some in (("reviews.tsv", rows[:100]), ("more.tsv", rows[100:])):
        lines = ["sentence\tlabel", *("\t".join(row) for row in some)]
        (workplace / name).write_text("\n".join(lines) + "\n")
    (workplace / "lines.txt").write_text("\n".join(text for text, _ in rows) + "\n")
    base = workplace / "all-MiniLM-L6-v2"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(base)
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    inner.train_from_iterator([WORDS], trainer)
    assert inner.get_vocab_size() <= 60
    inner.save(str(base / "tokenizer.json"))
    names = {f"{kind}_token": name for kind, name in zip(("pad", "unk", "cls", "sep", "mask"), specials, strict=True)}
    (base / "special_tokens_map.json").write_text(json.dumps(names))
    _write_gguf(workplace / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return workplace


def _write_gguf(path: Path) -> None:
    """A Llama that knows nothing, with a template for conversations."""
    tokenizer = train_tokenizer([WORDS], "bpe", 300)
    _, shape = find_preset("llama-tiny")
    config = TransformerConfig.read({**shape, "num_layers": 1, "model_dim": 16, "num_heads": 2, "context_length": 64})
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
    write_gguf(path, Transformer(config, tokenizer.vocab_size), tokenizer, chat_template=template, number_type="F32")


@pytest.fixture
def environment(workplace: Path) -> dict[str, str]:
    """The environment of a command: the `regard` of this Python, one thread, a cache of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(workplace / "cache")}


@pytest.fixture
def run(workplace: Path, environment: dict[str, str]) -> Callable[[list[str]], subprocess.CompletedProcess[str]]:
    """Runs a command in the workplace."""

    def started(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=workplace, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False
        )

    return started


@pytest.fixture
def run_inside(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[object, str, str]]:
    """Runs a `regard` command in the workplace, inside the test's process: exit code, stdout and stderr."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("REGARD_CACHE", str(workplace / "cache"))
    torch.set_default_dtype(torch.float32)

    def started(command: str) -> tuple[object, str, str]:
        piped, _, command = command.rpartition(" | ")
        given = (workplace / piped.removeprefix("cat ")).read_bytes() if piped else b""
        answer = call(*shlex.split(command)[1:], stdin=given)
        return answer.code, answer.out, answer.err

    return started


def _write(path: Path, rows: list[tuple[str, ...]]) -> None:
    lines = [("source", "target"), *rows]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
