"""Small files in the layouts in which public data sets are distributed, and what each is recognized as.

The texts are generated; names of files and columns, separators, quotes, encodings and kinds of values are those of the
data sets.
"""

import csv
import io
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

_SEEN = [
    "the", "a", "small", "great", "awful", "old", "film", "story", "actor", "plot", "scene", "end", "music",
    "game", "team", "player", "market", "price", "stock", "bank", "phone", "call", "free", "prize", "money",
    "friend", "city", "river", "house", "rain", "wind", "train", "ticket", "server", "network", "court",
    "judge", "law", "vote", "never", "always", "slowly", "really", "almost", "why", "how", "when", "with",
    "without", "under", "over", "before", "after",
]  # fmt: skip
NUM_ROWS = 60


def texts(number: int = NUM_ROWS, *, seed: int = 0, words: tuple[int, int] = (5, 14)) -> list[str]:
    """Distinct sentences."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        chosen = rng.choices(_SEEN, k=rng.randint(*words))
        found[" ".join(chosen).capitalize() + rng.choice([".", "!", ", they say."])] = None
    return list(found)


def titles(number: int = NUM_ROWS, *, seed: int = 1, words: tuple[int, int] = (3, 6)) -> list[str]:
    """Distinct headlines."""
    return [text.rstrip(".!,").title() for text in texts(number, seed=seed, words=words)]


def cycle(values: Sequence[Any], number: int = NUM_ROWS, *, seed: int = 2) -> list[Any]:
    """The values repeatedly, in random order."""
    found = [values[place % len(values)] for place in range(number)]
    random.Random(seed).shuffle(found)
    return found


def csv_of(
    header: Sequence[str] | None, columns: Iterable[Iterable[Any]], *, separator: str = ",", quoted: bool = False
) -> str:
    """The text of a CSV file."""
    stream = io.StringIO()
    writer = csv.writer(
        stream, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    )
    writer.writerows([*([header] if header else []), *zip(*columns, strict=True)])
    return stream.getvalue()


def tsv_of(header: Sequence[str] | None, columns: Iterable[Iterable[Any]]) -> str:
    """The text of a TSV file, without quotes."""
    rows = [*([header] if header else []), *zip(*columns, strict=True)]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def lines_of(records: Iterable[Any]) -> str:
    """JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def records_of(**columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Objects with these fields."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class Layout:
    """Files of one layout, and what is expected of them."""

    name: str
    files: dict[str, str | bytes | Callable[[Path], None]]
    """The content of each file by its path in a folder, or what writes it."""
    task: str | None
    """None: the files are refused."""
    row: tuple[str, ...] | None = None
    """The texts of the first row as the task reads it; None where it reads no rows of texts."""
    given: tuple[str, ...] = ()
    """What is named in the command, if it is not the only file or the folder."""
    says: tuple[str, ...] = ()
    """Parts of the reason or of what is printed about the columns; of the error, where there is no task."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the task that are recognized."""

    def write(self, folder: Path) -> list[str]:
        """Write the files; the paths to train on."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content, encoding="utf-8", newline="")
        found = self.given or (
            (next(iter(self.files)),) if len(self.files) == 1 else (next(iter(self.files)).split("/")[0],)
        )
        return [str(folder / name) for name in found]


def _parquet(records: list[dict[str, Any]]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(records), path)

    return write


T, U = texts(), titles()
IDS = [1_000_003 + 7_919 * place for place in range(NUM_ROWS)]
HAM = cycle(["ham", "spam"])
BIT = cycle(["0", "1"])
NERS = ["O", "B-PER", "I-PER", "O", "B-LOC", "O"]
SENTENCES = [f"then Ada Byron{place} left Paris .".split() for place in range(NUM_ROWS)]
DAYS = [date(2023, 1, 1) + timedelta(days=place) for place in range(NUM_ROWS)]
SMILES = [
    "CCO", "CCCO", "CCCCO", "CC(=O)O", "c1ccccc1", "c1ccccc1O", "CCN", "CCCN", "CC(C)O", "CC(C)C", "CCOCC",
    "CCCl", "CCBr", "c1ccncc1", "CC=O", "CCC=O", "C1CCCCC1", "C1CCCC1", "CC(C)=O", "CCS",
]  # fmt: skip


def _ner_frame() -> bytes:
    rows = [
        (f"Sentence: {number}" if place == 0 else "", word, "NN", tag)
        for number, words in enumerate(SENTENCES, 1)
        for place, (word, tag) in enumerate(zip(words, NERS, strict=True))
    ]
    return (
        csv_of(["Sentence #", "Word", "POS", "Tag"], zip(*rows, strict=True))
        .replace("Ada", "Zo\u00eb")
        .encode("cp1252")
    )


def _conll() -> str:
    blocks = ["-DOCSTART- -X- -X- O\n"]
    for words in SENTENCES:
        blocks.append("".join(f"{word} NN B-NP {tag}\n" for word, tag in zip(words, NERS, strict=True)))
    return "\n".join(blocks)


def _conllu() -> str:
    blocks = []
    for number, words in enumerate(SENTENCES):
        rows = [f"{place}\t{word}\t{word.lower()}\tNOUN\tNN\t_\t0\troot\t_\t_\n" for place, word in enumerate(words, 1)]
        blocks.append(f"# sent_id = {number}\n" + "".join(rows))
    return "\n".join(blocks) + "\n"


def _squad() -> str:
    paragraphs = []
    for number in range(NUM_ROWS):
        context = f"In the year {1900 + number} the river Weser froze near Bremen."
        answers = [{"text": str(1900 + number), "answer_start": 12}]
        paragraphs.append(
            {
                "context": context,
                "qas": [{"id": f"q{number}", "question": f"When did it freeze ({number})?", "answers": answers}],
            }
        )
    return json.dumps({"version": "1.1", "data": [{"title": "Weser", "paragraphs": paragraphs}]})


def _imdb() -> dict[str, str]:
    found = {"aclImdb/README": "Large Movie Review Dataset", "aclImdb/imdb.vocab": "the\nand\n"}
    for split, label, some in (
        ("train", "neg", T[:20]),
        ("train", "pos", T[20:40]),
        ("test", "neg", T[40:50]),
        ("test", "pos", T[50:]),
    ):
        found |= {f"aclImdb/{split}/{label}/{n}_{n % 10}.txt": text for n, text in enumerate(some)}
        found[f"aclImdb/{split}/urls_{label}.txt"] = "http://www.imdb.com/title/tt0453418/usercomments\n"
    return found | {f"aclImdb/train/unsup/{n}_0.txt": text for n, text in enumerate(U[:20])}


def _newsgroups(root: str) -> dict[str, bytes]:
    groups = ("sci.space", "rec.autos", "alt.atheism")
    return {
        f"{root}/{groups[n % 3]}/{54_000 + n}": f"From: ann@x.edu\n\n{text} caf\u00e9\n".encode("latin-1")
        for n, text in enumerate(T)
    }


def _dortmund(**more: Sequence[Any]) -> dict[str, str]:
    """Forty graphs: paths and rings of three nodes, in turn."""
    edges = [[(1, 2), (2, 3)], [(1, 2), (2, 3), (1, 3)]]
    ends = [
        (3 * n + one, 3 * n + other) for n in range(40) for pair in edges[n % 2] for one, other in (pair, pair[::-1])
    ]
    files = {
        "A": [f"{one}, {other}" for one, other in ends],
        "graph_indicator": [n // 3 + 1 for n in range(120)],
        **more,
    }
    return {f"RINGS/RINGS_{part}.txt": "".join(f"{value}\n" for value in some) for part, some in files.items()}


def _image(path: Path) -> None:
    import numpy as np
    from PIL import Image

    Image.fromarray(np.full((8, 8, 3), len(path.stem) * 11 % 256, np.uint8)).save(path)


def _coco() -> dict[str, Any]:
    found = [{"id": place, "file_name": f"{place}.png", "width": 8, "height": 8} for place in range(20)]
    notes = [{"id": place, "image_id": place % 20, "caption": text} for place, text in enumerate(T)]
    return {
        "annotations.json": json.dumps({"info": {}, "images": found, "annotations": notes}),
        **{f"{place}.png": _image for place in range(20)},
    }


STARS = cycle([1.0, 2.0, 3.0, 4.0, 5.0])
PRICES = [round(99.5 + 13.25 * place + place % 7, 2) for place in range(NUM_ROWS)]
NAMES = [
    f"{one.title()}son, Mr. {other.title()} {chr(65 + n % 26)}."
    for n, (one, other) in enumerate(zip(cycle(_SEEN), cycle(_SEEN, seed=9), strict=True))
]
RATINGS = [
    [1 + n * n % 19 for n in range(NUM_ROWS)],
    [7 * n * n % 47 for n in range(NUM_ROWS)],
    STARS,
    [964_982_703 + 7_919 * (n * n % 53) for n in range(NUM_ROWS)],
]
YELP = [
    {"review_id": f"r{place:04}x", "user_id": f"u{place % 13:03}y", "business_id": f"b{place % 9}z", "stars": STARS[place], "useful": place % 3,
     "funny": place % 2, "cool": 0, "text": T[place], "date": f"2018-07-{place % 28 + 1:02} 22:09:11"}
    for place in range(NUM_ROWS)
]  # fmt: skip
CHATS = [{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}, {"role": "assistant", "content": f"Yes, {number}."}]}
         for number, text in enumerate(T)]  # fmt: skip
SHAREGPT = [
    {"id": f"x{place}_0", "conversations": [*([{"from": "system", "value": "Be brief."}] if place % 2 else []), {"from": "human", "value": text}, {"from": "gpt", "value": f"Yes, {place}."}]}
    for place, text in enumerate(T)
]  # fmt: skip
SNLI = [
    {"annotator_labels": [label], "captionID": f"{place}.jpg#0", "gold_label": label, "pairID": f"{place}.jpg#0r1n", "sentence1": T[place],
     "sentence1_binary_parse": f"( {T[place]} )", "sentence1_parse": f"(ROOT (S {T[place]}))", "sentence2": U[place],
     "sentence2_binary_parse": f"( {U[place]} )", "sentence2_parse": f"(ROOT (NP {U[place]}))"}
    for place, label in enumerate(cycle(["neutral", "entailment", "contradiction"]))
]  # fmt: skip

LAYOUTS = [
    # Labels
    Layout("ag news", {"train.csv": csv_of(["Class Index", "Title", "Description"], [cycle("1234"), U, T])}, "text-classification", (U[0], T[0], cycle("1234")[0])),
    Layout("ag news without a header", {"train.csv": csv_of(None, [cycle("1234"), U, T], quoted=True)}, "text-classification", (U[0], T[0], cycle("1234")[0])),
    Layout("sms spam", {"SMSSpamCollection": tsv_of(None, [HAM, T])}, "text-classification", (T[0], HAM[0])),
    Layout("sms spam of a spreadsheet", {"spam.csv": csv_of(["v1", "v2", "", "", ""], [HAM, [f"{t} \xa3{n}" for n, t in enumerate(T)], *[[""] * NUM_ROWS] * 3]).encode("latin-1")},
           "text-classification", (f"{T[0]} \xa30", HAM[0])),
    Layout("sms spam by name", {"spam.csv": csv_of(["Category", "Message"], [HAM, T])}, "text-classification", (T[0], HAM[0])),
    Layout("sentiment140", {"training.1600000.csv": csv_of(None, [cycle("04"), IDS, [f"Mon Apr 06 22:{n:02}:45 PDT 2009" for n in range(NUM_ROWS)], ["NO_QUERY"] * NUM_ROWS,
           [f"user{n % 37}" for n in range(NUM_ROWS)], [f"@x caf\u00e9 {t}" for t in T]], quoted=True).encode("latin-1")}, "text-classification", (f"@x caf\u00e9 {T[0]}", cycle("04")[0])),
    Layout("subject, body, spam", {"emails.csv": csv_of(["subject", "body", "spam"], [U, T, BIT])}, "text-classification", (U[0], T[0], BIT[0])),
    Layout("short subjects", {"emails.csv": csv_of(["subject", "body", "spam"], [[f"Re {n}" for n in range(NUM_ROWS)], T, BIT])}, "text-classification", ("Re 0", T[0], BIT[0])),
    Layout("a json array", {"train.json": json.dumps(records_of(text=T, label=HAM), indent=1)}, "text-classification", (T[0], HAM[0])),
    Layout("a json array on one line", {"train.json": json.dumps(records_of(text=T, label=HAM))}, "text-classification", (T[0], HAM[0])),
    Layout("json of splits", {"data_full.json": json.dumps({"train": [list(p) for p in zip(T, HAM, strict=True)], "val": [["a b", "ham"]], "test": [["c d", "spam"]]})},
           None, says=("data_full.json",)),
    Layout("nested json lines", {"reviews.jsonl": lines_of({"id": i, "review": {"title": u, "text": t}, "meta": {"lang": "en"}, "sentiment": h} for i, u, t, h in zip(IDS, U, T, HAM, strict=True))},
           "text-classification", (U[0], T[0], HAM[0])),
    Layout("imdb as a table", {"IMDB Dataset.csv": csv_of(["review", "sentiment"], [[f'{t}<br /><br />"{u}"' for t, u in zip(T, U, strict=True)], cycle(["positive", "negative"])])},
           "text-classification", (f'{T[0]}<br /><br />"{U[0]}"', cycle(["positive", "negative"])[0])),
    Layout("quora pairs", {"train.csv": csv_of(["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], [range(NUM_ROWS), range(1, 121, 2), range(2, 122, 2), T, U, BIT])},
           "text-classification", (T[0], U[0], BIT[0])),
    Layout("paws", {"train.tsv": tsv_of(["id", "sentence1", "sentence2", "label"], [range(1, NUM_ROWS + 1), T, U, BIT])}, "text-classification", (T[0], U[0], BIT[0])),
    Layout("mrpc", {"msr_paraphrase_train.txt": "\ufeff" + tsv_of(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], [BIT, IDS, [i + 3 for i in IDS], T, U])},
           "text-classification", (T[0], U[0], BIT[0])),
    Layout("snli", {"snli_1.0_train.jsonl": lines_of(SNLI)}, "text-classification", (T[0], U[0], SNLI[0]["gold_label"])),
    Layout("snli as tsv", {"snli_1.0_train.txt": tsv_of(["gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "captionID", "pairID", "label1"],
           [[r[k] for r in SNLI] for k in ("gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "captionID", "pairID", "gold_label")])},
           "text-classification", (T[0], U[0], SNLI[0]["gold_label"])),
    Layout("jigsaw", {"train.csv": csv_of(["id", "comment_text", "toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"],
           [[f"{i:016x}" for i in IDS], T, *(cycle("00001", seed=s) for s in range(6))])}, "text-classification", (T[0], "obscene"), says=("toxic", "identity_hate"), settings=(("label_separator", ","),)),
    Layout("topics of abstracts", {"train.csv": csv_of(["ID", "TITLE", "ABSTRACT", "Computer Science", "Physics", "Mathematics"], [range(1, NUM_ROWS + 1), U, T, *(cycle("01", seed=s) for s in range(3))])},
           "text-classification", (U[0], T[0], "Mathematics")),
    Layout("lists of labels as text", {"train.csv": csv_of(["text", "labels"], [T, cycle(["['a', 'b']", "['a']"])])}, "text-classification", (T[0], cycle(["['a', 'b']", "['a']"])[0])),
    Layout("tweets with their times", {"tweets.csv": csv_of(["id", "created_at", "text", "sentiment"], [IDS, [f"Mon Apr 06 22:{n:02}:45 +0000 2009" for n in range(NUM_ROWS)], T, HAM])}, "text-classification", (T[0], HAM[0])),
    Layout("amazon reviews as json lines", {"reviews.json": lines_of({"reviewerID": f"A{i}", "asin": f"B{i % 9}", "reviewerName": f"Ann {i}", "helpful": [0, i % 3], "reviewText": t, "overall": s, "summary": u, "reviewTime": "05 3, 2011"} for i, (t, u, s) in enumerate(zip(T, U, STARS, strict=True)))},
           "text-classification", (T[0], U[0], str(STARS[0]))),
    Layout("hate speech", {"labeled_data.csv": csv_of(["", "count", "hate_speech", "offensive_language", "neither", "class", "tweet"],
           [range(NUM_ROWS), ["3"] * NUM_ROWS, cycle("0123"), cycle("0123", seed=4), cycle("0123", seed=5), cycle("012"), T])}, "text-classification", (T[0], cycle("012")[0])),
    Layout("airline tweets", {"Tweets.csv": csv_of(["tweet_id", "airline_sentiment", "airline_sentiment_confidence", "negativereason", "airline", "name", "retweet_count", "text", "tweet_created", "user_timezone"],
           [IDS, cycle(["neutral", "positive", "negative"]), [round(0.5 + n / 200, 4) for n in range(NUM_ROWS)], cycle(["", "Bad Flight", "Late"]), cycle(["United", "Delta"]), [f"user{n}" for n in range(NUM_ROWS)],
            ["0"] * NUM_ROWS, T, ["2015-02-24 11:35:52 -0800"] * NUM_ROWS, cycle(["", "Eastern Time"])])}, "text-classification", (T[0], cycle(["neutral", "positive", "negative"])[0])),
    Layout("disaster tweets", {"train.csv": csv_of(["id", "keyword", "location", "text", "target"], [range(1, 121, 2), cycle(["", "fire", "flood"]), cycle(["", "Berlin", "Oslo, Norway"]), T, BIT])},
           "text-classification", (T[0], BIT[0])),
    Layout("fake news", {"train.csv": csv_of(["id", "title", "author", "text", "label"], [range(NUM_ROWS), U, [f"Ann {n % 30}" for n in range(NUM_ROWS)], T, BIT])}, "text-classification", (U[0], T[0], BIT[0])),
    Layout("bbc news", {"BBC News Train.csv": csv_of(["ArticleId", "Text", "Category"], [IDS, T, cycle(["business", "tech", "sport"])])}, "text-classification", (T[0], cycle(["business", "tech", "sport"])[0])),
    Layout("dbpedia without a header", {"train.csv": csv_of(None, [cycle([str(n) for n in range(1, 6)]), U, T], quoted=True)}, "text-classification", (U[0], T[0], cycle([str(n) for n in range(1, 6)])[0])),
    Layout("cola", {"in_domain_train.tsv": tsv_of(None, [["gj04"] * NUM_ROWS, BIT, cycle(["", "*"]), T])}, "text-classification", (T[0], BIT[0])),
    Layout("sst-2", {"train.tsv": tsv_of(["sentence", "label"], [T, BIT])}, "text-classification", (T[0], BIT[0])),
    Layout("banking77 with an index", {"train.tsv": tsv_of(["", "text", "category"], [range(NUM_ROWS), T, cycle(["card_arrival", "card_lost"])])}, "text-classification", (T[0], cycle(["card_arrival", "card_lost"])[0])),
    Layout("go emotions", {"train.tsv": tsv_of(None, [T, cycle(["27", "2", "10,3", "3,27"]), [f"e{n:05x}" for n in IDS]])}, "text-classification", (T[0], cycle(["27", "2", "10,3", "3,27"])[0])),
    Layout("quotes with line ends", {"reviews.csv": csv_of(["review", "label"], [[f'First, "this".\n\n{t}' for t in T], HAM])}, "text-classification", (f'First, "this".\n\n{T[0]}', HAM[0])),
    Layout("amazon reviews", {"Reviews.csv": csv_of(["Id", "ProductId", "UserId", "ProfileName", "HelpfulnessNumerator", "HelpfulnessDenominator", "Score", "Time", "Summary", "Text"],
           [range(1, NUM_ROWS + 1), [f"B00{n % 20:02}X" for n in range(NUM_ROWS)], [f"A{i}" for i in IDS], [f"Ann {n}" for n in range(NUM_ROWS)], cycle("012"), cycle("0123"), cycle("12345"), [1303862400 + n for n in IDS], U, T])},
           "text-classification", (U[0], T[0], cycle("12345")[0])),
    Layout("yelp", {"review.json": lines_of(YELP)}, "text-classification", (T[0], str(STARS[0]))),
    Layout("parquet of labels", {"train.parquet": _parquet(records_of(text=T, label=[int(b) for b in BIT]))}, "text-classification", (T[0], BIT[0])),
    Layout("imdb", _imdb(), "text-classification", (T[0], "neg"), says=("labels: neg, pos", "unsup of train is not used")),
    Layout("20 newsgroups", {**_newsgroups("20news")}, "text-classification", (f"From: ann@x.edu\n\n{T[2]} caf\u00e9", "alt.atheism")),
    Layout("20 newsgroups by date", {**_newsgroups("20news/20news-bydate-train"), **_newsgroups("20news/20news-bydate-test")}, "text-classification", (f"From: ann@x.edu\n\n{T[2]} caf\u00e9", "alt.atheism")),
    Layout("texts by split only", {f"corpus/{split}/{n}.txt": text for split in ("train", "test") for n, text in enumerate(T)}, None, says=("nothing to train on",)),
    Layout("programs and notes", {"tool/src/main.py": "print(1)\n", "tool/src/notes.txt": T[0], "tool/docs/index.md": U[0], "tool/docs/more.txt": U[1]}, None, says=("nothing to train on",)),
    Layout("names of products", {"products.csv": csv_of(["product_name", "brand", "price", "rating", "category"], [[f"{u} {n}" for n, u in enumerate(titles(words=(5, 9)))], cycle(["Acme", "Zeta"]), PRICES, STARS, cycle(["toys", "garden"])])},
           "text-classification", (f"{titles(words=(5, 9))[0]} 0", cycle(["toys", "garden"])[0])),
    Layout("surnames", {"names.csv": csv_of(["name", "language"], [[n.split(",")[0] + str(k) for k, n in enumerate(NAMES)], cycle(["Russian", "Czech"])])}, "text-classification", (NAMES[0].split(",")[0] + "0", cycle(["Russian", "Czech"])[0])),
    # Numbers
    Layout("sts benchmark", {"train.tsv": tsv_of(["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"],
           [range(NUM_ROWS), ["main-captions"] * NUM_ROWS, ["MSRvid"] * NUM_ROWS, ["2012test"] * NUM_ROWS, range(1, NUM_ROWS + 1), ["none"] * NUM_ROWS, ["none"] * NUM_ROWS, T, U, [f"{n % 26 / 5:.3f}" for n in range(NUM_ROWS)]])},
           "regression", (T[0], U[0], "0.000")),
    Layout("a shop in Germany", {"produkte.csv": ("\ufeff" + csv_of(["Titel", "Beschreibung", "Preis"], [U, T, [str(p).replace(".", ",") for p in PRICES]], separator=";"))}, "regression", (U[0], T[0], "99.5")),
    Layout("prices of houses", {"houses.csv": csv_of(["Id", "LotArea", "YearBuilt", "Street", "SalePrice"], [range(1, NUM_ROWS + 1), IDS, [1950 + n % 50 for n in range(NUM_ROWS)], cycle(["Pave", "Grvl"]), [int(1000 * p) for p in PRICES]])},
           None, says=("houses.csv has numbers", "no sequence to model")),
    Layout("features of people", {"adult.csv": csv_of(["age", "workclass", "education", "sex", "income"], [[n * 7 % 50 for n in range(NUM_ROWS)], cycle(["Private", "State-gov"]), cycle(["HS-grad", "Bachelors"]), cycle(["Male", "Female"]), cycle(["<=50K", ">50K"])])},
           None, says=("adult.csv has numbers (age) and labels (workclass, education, sex, income)",)),
    Layout("titanic", {"titanic.csv": csv_of(["PassengerId", "Survived", "Pclass", "Name", "Sex", "Age", "SibSp", "Parch", "Ticket", "Fare", "Cabin", "Embarked"],
           [range(1, NUM_ROWS + 1), BIT, cycle("123"), NAMES, cycle(["male", "female"]), ["" if n % 5 == 0 else n * 7 % 60 for n in range(NUM_ROWS)], cycle("012"), cycle("01"), [f"A/5 {i}" for i in IDS], PRICES, ["" if n % 4 else f"C{n}" for n in range(NUM_ROWS)], cycle("SCQ")])},
           None, says=("titanic.csv has", "text (Name", "name the columns of an input and a target", "no sequence to model")),
    Layout("cars with missing values", {"cars.csv": csv_of(["name", "mpg", "cylinders", "horsepower", "origin"], [[f"ford {u.lower()}" for u in titles(words=(1, 3))], ["NA" if n % 6 == 0 else f"{15 + n % 17}.5" for n in range(NUM_ROWS)], cycle("468"), IDS, cycle(["USA", "Japan"])])},
           None, says=("numbers (mpg, cylinders, horsepower)", "no sequence to model")),
    Layout("groups and numbers", {"growth.csv": csv_of(["", "weight", "group"], [range(1, 31), PRICES[:30], cycle(["ctrl", "trt1", "trt2"], 30)])}, None, says=("numbers (weight) and labels (group)",)),
    Layout("names of rows", {"states.csv": csv_of(["", "population", "income", "illiteracy"], [U, IDS, IDS[::-1], PRICES])}, None, says=("numbers (population, income, illiteracy)",)),
    Layout("several scores of a text", {"train.csv": csv_of(["text_id", "full_text", "cohesion", "syntax"], [[f"{i:X}" for i in IDS], T, cycle(["2.5", "3.0", "3.5"]), cycle(["2.5", "3.0", "3.5"], seed=7)])}, None, says=("numbers (cohesion, syntax)",)),
    Layout("months that are no dates", {"shampoo.csv": csv_of(["Month", "Sales"], [[f"{n // 12 + 1}-{n % 12 + 1:02}" for n in range(NUM_ROWS)], PRICES])}, None, says=("numbers (Sales)",)),
    Layout("readability", {"train.csv": csv_of(["id", "url_legal", "license", "excerpt", "target", "standard_error"], [[f"{i:x}" for i in IDS], [""] * NUM_ROWS, [""] * NUM_ROWS, T, PRICES, PRICES])}, "regression", (T[0], "99.5")),
    Layout("described houses", {"houses.csv": csv_of(["Id", "Description", "Price"], [range(1, NUM_ROWS + 1), T, PRICES])}, "regression", (T[0], "99.5")),
    # JSON that has no rows
    Layout("a dictionary", {"countries.json": json.dumps(dict(zip(U, T, strict=True)))}, None, says=("countries.json is one JSON object", U[0])),
    Layout("an indented dictionary", {"countries.json": json.dumps(dict(zip(U, T, strict=True)), indent=2)}, None, says=("countries.json is one JSON object", U[0])),
    Layout("a list of words", {"words.json": json.dumps(T)}, None, says=("words.json has texts", "an object for each row")),
    Layout("names of emoji", {"compact.json": json.dumps(records_of(hexcode=[f"1F{n:03X}" for n in range(NUM_ROWS)], label=[u.lower() for u in U], group=cycle([0, 1, 2]), order=list(range(100, 100 + NUM_ROWS)), unicode=[chr(0x1F600 + n) for n in range(NUM_ROWS)]))}, None, says=("compact.json has",)),
    # Tags
    Layout("ner as parquet", {"train.parquet": _parquet(records_of(id=[str(n) for n in range(NUM_ROWS)], tokens=SENTENCES, pos_tags=[[1] * 6] * NUM_ROWS, chunk_tags=[[0] * 6] * NUM_ROWS, ner_tags=[[0, 1, 2, 0, 5, 0]] * NUM_ROWS))},
           "token-classification", (" ".join(SENTENCES[0]), "0 1 2 0 5 0")),
    Layout("ner as json lines", {"train.jsonl": lines_of(records_of(tokens=SENTENCES, ner_tags=[NERS] * NUM_ROWS))}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("ner as a json array", {"train.json": json.dumps(records_of(tokens=SENTENCES, ner_tags=[NERS] * NUM_ROWS))}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("ner as a word a row", {"ner_dataset.csv": _ner_frame()}, "token-classification", (" ".join(SENTENCES[0]).replace("Ada", "Zo\u00eb"), " ".join(NERS))),
    Layout("ner as texts and tags", {"ner.csv": csv_of(["Sentence #", "Sentence", "POS", "Tag"], [[f"Sentence: {n + 1}" for n in range(NUM_ROWS)], [" ".join(w) for w in SENTENCES], [str(["NN"] * 6)] * NUM_ROWS, [str(NERS)] * NUM_ROWS])},
           "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("words and tags with a header", {"train.tsv": "word\ttag\n" + "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(s, NERS, strict=True)) for s in SENTENCES)}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("conll-2003", {"train.txt": _conll()}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("conll-2003 by its name", {"eng.train": _conll()}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("wnut", {"wnut17train.conll": "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(s, NERS, strict=True)) for s in SENTENCES)}, "token-classification", (" ".join(SENTENCES[0]), " ".join(NERS))),
    Layout("conll-u", {"en_ewt-ud-train.conllu": _conllu()}, "token-classification", (" ".join(SENTENCES[0]), " ".join(["NOUN"] * 6))),
    # Pairs
    Layout("manythings", {"deu.txt": tsv_of(None, [T, U, [f"CC-BY 2.0 (France) Attribution: tatoeba.org #{i} (CM) & #{i + 7} (Roujin)" for i in IDS]])}, "seq2seq", (T[0], U[0])),
    Layout("tatoeba with numbers", {"pairs.tsv": tsv_of(None, [IDS, T, [i + 3 for i in IDS], U])}, "seq2seq", (T[0], U[0])),
    Layout("titles with names of languages", {"eng_fra.csv": csv_of(["English words/sentences", "French words/sentences"], [T, U])}, "seq2seq", (T[0], U[0])),
    Layout("documents and summaries", {"xsum.jsonl": lines_of(records_of(id=[str(i) for i in IDS], document=[" ".join(T[n : n + 3]) for n in range(NUM_ROWS)], summary=U))}, "seq2seq", (" ".join(T[:3]), U[0])),
    Layout("parallel files", {"train.de": "\n".join(U) + "\n", "train.en": "\n".join(T) + "\n"}, "seq2seq", (U[0], T[0]), given=("train.de", "train.en")),
    Layout("a folder of parallel files", {f"multi30k/{s}.{lang}": "\n".join(x) + "\n" for s in ("train", "val", "test") for lang, x in (("de", U), ("en", T))}, "seq2seq", (U[0], T[0])),
    Layout("translations", {"train.jsonl": lines_of({"id": str(n), "translation": {"de": u, "en": t}} for n, (u, t) in enumerate(zip(U, T, strict=True)))}, "seq2seq", (U[0], T[0])),
    Layout("summaries", {"train.csv": csv_of(["id", "article", "highlights"], [[f"{i:040x}" for i in IDS], [" ".join(T[n : n + 3]) for n in range(NUM_ROWS)], U])}, "seq2seq", (" ".join(T[:3]), U[0])),
    Layout("dates as targets", {"dates.csv": csv_of(["written", "iso"], [[f"on {d.day} {d:%B %Y}" for d in DAYS], DAYS])}, "seq2seq", ("on 1 January 2023", "2023-01-01"), says=("the targets are dates",)),
    Layout("corrected words", {"words.csv": csv_of(["wrong", "right", "count"], [[u.split()[0].lower() + str(n) for n, u in enumerate(U)], [u.split()[1].lower() + str(n) for n, u in enumerate(U)], IDS])}, "seq2seq", (U[0].split()[0].lower() + "0", U[0].split()[1].lower() + "0")),
    # Text
    Layout("one document", {"book.txt": "\n".join([" ".join(T[n : n + 4]) for n in range(0, 56, 2)]) + "\n"}, "language-modeling"),
    Layout("a folder of texts", {f"essays/{n}.txt": f"{t}\n{T[-n]}\n" for n, t in enumerate(T[:20])}, "language-modeling"),
    Layout("a column of text", {"train.parquet": _parquet(records_of(text=T))}, "language-modeling"),
    # Questions, chats and preferences
    Layout("squad", {"train-v1.1.json": _squad()}, "question-answering", ("In the year 1900 the river Weser froze near Bremen.", "When did it freeze (0)?")),
    Layout("chats", {"chats.jsonl": lines_of(CHATS)}, "instruction-tuning"),
    Layout("sharegpt", {"sharegpt.json": json.dumps(SHAREGPT, indent=2)}, "instruction-tuning", (T[0], "Yes, 0.")),
    Layout("sharegpt as json lines", {"train.jsonl": lines_of(SHAREGPT[1::2])}, "instruction-tuning", (json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": T[1]}]), "Yes, 1.")),
    Layout("alpaca", {"alpaca_data.json": json.dumps(records_of(instruction=T, input=cycle(["", "a b"]), output=U), indent=2)}, "instruction-tuning"),
    Layout("dolly", {"dolly.jsonl": lines_of(records_of(instruction=T, context=cycle(["", "a b"]), response=U, category=cycle(["open_qa", "brainstorming"])))}, "instruction-tuning"),
    Layout("preferences", {"prefs.jsonl": lines_of(records_of(prompt=T, chosen=U, rejected=titles(seed=7)))}, "reward-modeling"),
    # Images
    Layout("coco", _coco(), "captioning", given=("annotations.json",)),
    Layout("images as folders", {f"{split}/{label}/{'x' * n}.png": _image for split in ("pets",) for label in ("cat", "dog") for n in range(1, 13)}, "image-classification"),
    # Ratings
    Layout("ratings", {"ratings.csv": csv_of(["userId", "movieId", "rating", "timestamp"], RATINGS)}, None, says=("ratings.csv has numbers (userId, movieId, rating, timestamp)", "rows of userId and movieId over timestamp are events", "event-prediction")),
    Layout("ratings without a header", {"u.data": tsv_of(None, RATINGS)}, None, says=("u.data has numbers",)),
    Layout("ratings between double colons", {"ratings.dat": "".join("::".join(map(str, row)) + "\n" for row in zip(*RATINGS, strict=True))}, None, says=("ratings.dat has numbers",)),
    Layout("ratings of products", {"ratings_Beauty.csv": csv_of(None, [[f"A{7919 * n % 104729}XQ" for n in range(NUM_ROWS)], [f"B00{n % 23:03}K" for n in range(NUM_ROWS)], STARS, RATINGS[3]])}, None, says=("ratings_Beauty.csv has text",)),
    Layout("genres of films between double colons", {"movies.dat": "".join(f"{n}::{u} (1995)::{genre}\n" for n, (u, genre) in enumerate(zip(U, cycle(["Comedy", "Drama"]), strict=True), 1)).encode("latin-1")},
           "text-classification", (f"{U[0]} (1995)", cycle(["Comedy", "Drama"])[0])),
    # Series
    Layout("a weather station", {"seattle-weather.csv": csv_of(["date", "precipitation", "temp_max", "weather"], [[f"{d:%Y/%m/%d}" for d in DAYS], PRICES, ["NA", *PRICES[1:]], cycle(["sun", "rain"])])}, "forecasting", says=("labels (weather)",)),
    Layout("dates without a title", {"seatbelts.csv": csv_of(["", "KSI", "law"], [[d.isoformat() for d in DAYS], PRICES, BIT])}, "forecasting"),
    Layout("a number a year", {"huron.csv": csv_of(["year", "level"], [range(1875, 1875 + NUM_ROWS), PRICES])}, "forecasting", settings=(("time_column", "year"),)),
    Layout("years of several firms", {"grunfeld.csv": csv_of(["invest", "value", "firm", "year"], [PRICES, IDS, [f"firm {n // 15}" for n in range(NUM_ROWS)], [1935 + n % 15 for n in range(NUM_ROWS)]])}, "forecasting", settings=(("time_column", "year"),)),
    Layout("prices with written dates", {"stocks.csv": csv_of(["symbol", "date", "price"], [cycle(["MSFT", "IBM"]), [f"{d:%b} {d.day} {d.year}" for d in DAYS], PRICES])}, None, says=("numbers (price)",)),
    Layout("measurements for classification", {"GunPoint_TRAIN.ts": "#Outlines of a hand.\n@problemName GunPoint\n@data\n" + "".join(",".join(f"{(7 * n + k) % 13 / 7:.3f}" for k in range(30)) + f":{n % 2}\n" for n in range(20))}, None, says=("has lines of numbers",)),
    Layout("air passengers", {"AirPassengers.csv": csv_of(["Month", "#Passengers"], [[f"{1949 + n // 12}-{n % 12 + 1:02}" for n in range(NUM_ROWS)], [112 + n * 3 % 47 for n in range(NUM_ROWS)]])}, "forecasting"),
    Layout("stock prices", {"AAPL.csv": csv_of(["Date", "Open", "High", "Low", "Close", "Volume"], [DAYS, *(PRICES,) * 4, IDS])}, "forecasting"),
    Layout("several stores", {"sales.csv": csv_of(["date", "store", "sales"], [DAYS[:30] * 2, ["A"] * 30 + ["B"] * 30, PRICES])}, "forecasting"),
    # Molecules and graphs
    Layout("tu dortmund", _dortmund(graph_labels=[(-1) ** n for n in range(40)], node_labels=[0, 1, 0] * 40, edge_labels=[1, 1, 1, 1, 2, 2, 1, 1, 1, 1] * 20), "graph-classification",
           ('{"nodes":["0","1","0"],"edges":[[0,1,"1"],[1,0,"1"],[1,2,"1"],[2,1,"1"]]}', "1"), says=("the graphs in RINGS",)),
    Layout("tu dortmund with attributes", _dortmund(graph_labels=[n % 2 for n in range(40)], graph_attributes=[n / 3 for n in range(40)], node_labels=[0, 1, 0] * 40, node_attributes=["0.5, -1"] * 120), "graph-classification",
           ('{"nodes":[[0.5,-1.0,1.0,0.0],[0.5,-1.0,0.0,1.0],[0.5,-1.0,1.0,0.0]],"edges":[[0,1],[1,0],[1,2],[2,1]]}', "0"), says=("not used: RINGS_graph_attributes.txt",)),
    Layout("tu dortmund with a number", _dortmund(graph_attributes=[n / 3 for n in range(40)]), "graph-regression", ('{"nodes":["node","node","node"],"edges":[[0,1],[1,0],[1,2],[2,1]]}', "0.0")),
    Layout("tu dortmund with numbers", _dortmund(graph_attributes=[f"{n / 3:.3f}, {n * n}" for n in range(40)]), "graph-properties", ('{"nodes":["node","node","node"],"edges":[[0,1],[1,0],[1,2],[2,1]]}',)),
    Layout("esol", {"delaney.csv": csv_of(["Compound ID", "ESOL predicted log solubility in mols per litre", "measured log solubility in mols per litre", "smiles"],
           [[f"compound {n}" for n in range(20)], [-n / 7 for n in range(20)], [-n / 6.5 for n in range(20)], SMILES])}, "molecule-properties"),
    Layout("tox21", {"tox21.csv": csv_of(["NR-AR", "NR-ER", "SR-p53", "mol_id", "smiles"], [cycle(["0", "1", ""], 20), cycle(["0", "0", "1"], 20), cycle(["", "0", "1"], 20, seed=6), [f"TOX{n}" for n in range(20)], SMILES])}, "molecule-properties"),
]  # fmt: skip
