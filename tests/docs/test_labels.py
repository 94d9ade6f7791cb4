"""The commands and the program of the page on fine-tuning run."""

import json
import logging
import lzma
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.meals import meals

import regard

SMALL = "--set model.num_layers=1 --set model.model_dim=32"


@pytest.fixture
def labels_page():
    from tests.docs.conftest import ROOT, Page

    return Page(ROOT / "docs" / "labels.md")


@pytest.fixture
def reviews(pretrained: Path) -> Path:
    """A workplace with labels, and with models to go on from."""
    _write_meals(pretrained)
    return pretrained


def _write_meals(workplace: Path) -> None:
    """What is said about food and service, as a table and as SemEval has it, and the model file that the page shows."""
    from tests.docs.conftest import ROOT, Page

    rows = meals(60)
    (workplace / "meals.tsv").write_text("\n".join(["text\taspect\tlabel", *map("\t".join, rows)]) + "\n")
    for name, some in (("Restaurants_Train_v2", rows[:100]), ("Restaurants_Test_Gold", rows[100:])):
        sentences = "".join(
            f"<sentence><text>{text}</text><aspectCategories>"
            f'<aspectCategory category="{aspect}" polarity="{label}"/></aspectCategories></sentence>'
            for text, aspect, label in some
        )
        content = f"<sentences>{sentences}</sentences>".encode()
        (workplace / f"{name}.xml.xz").write_bytes(lzma.compress(content))
    (plain,) = Page(ROOT / "docs" / "labels.md").blocks("toml")
    (workplace / "plain.toml").write_text(plain)


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(
    labels_page, reviews, run_inside, environment, capsys
):
    for command in labels_page.short_commands():
        more = {"finetune": " --steps 3", "train": f" {SMALL}"}.get(command.split()[1], "")
        code, out, err = run_inside(command.replace("--shot-seeds 5", "--shot-seeds 1") + more)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    (program,) = labels_page.blocks("python")
    exec(program.replace('out="runs/python"', 'out="runs/python", settings={"train": {"max_steps": 3}}'), {})
    assert capsys.readouterr().out.strip()
    assert (reviews / "runs" / "reviews" / "model.safetensors").stat().st_size < 40_000
    answer = json.loads(run_inside('regard predict runs/reviews "a film to remember" --json')[1])
    served = asked_while_served(labels_page, reviews, environment)
    assert served["predictions"][0]["output"] == answer["predictions"][0]["output"]


@pytest.mark.slow
def test_training_from_scratch_names_the_imported_encoder_and_its_command(pretrained, run_inside, caplog):
    train = "regard train reviews.tsv --columns sentence,label --steps 1"
    assert "regard finetune" not in run_inside(f"{train} --out runs/before --no-baseline")[2]
    run_inside("regard import all-MiniLM-L6-v2 'a base'")
    (pretrained / "broken").mkdir()
    (pretrained / "broken" / "run.toml").write_text('hardware = "none: imported"')
    code, _, err = run_inside(f"{train} --out runs/scratch")
    (line,) = (line for line in err.splitlines() if "finetune 'a base'" in line)
    assert code == 0
    assert "with 100 rows: fine-tuned MiniLM 0.77, an LSTM alone 0.55" in line
    command = line[line.rindex("regard finetune") :]
    assert command == "regard finetune 'a base' reviews.tsv --columns sentence,label"
    code, _, err = run_inside(f"{command} --head --out runs/tuned")
    assert code == 0, err
    for other in (f"{train} --model lstm", "regard train pairs.tsv --steps 1"):
        code, _, err = run_inside(f"{other} --out runs/other --overwrite")
        assert code == 0
        assert "regard finetune 'a base'" not in err
    rows = [(f"{word} film {n}", word) for n in range(30) for word in ("good", "bad")]
    with caplog.at_level(logging.INFO, logger="regard"):
        regard.train(rows, steps=1, out="runs/rows", show_progress=False)
    assert "regard.finetune('a base', rows)" in caplog.text


def asked_while_served(page, workplace: Path, environment: dict[str, str]) -> dict:
    """What the page's request is answered while the page's server runs; Ctrl-C ends that."""
    (serve,) = (command for command in page.commands() if command.startswith("regard serve "))
    (request,) = (line for block in page.blocks("sh") for line in block.splitlines() if line.startswith("curl "))
    server = subprocess.Popen(
        shlex.split(serve), cwd=workplace, env=environment, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        line = request.replace("http://127.0.0.1:8000", url).replace("curl ", "curl --silent ", 1)
        asked = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
        server.send_signal(signal.SIGINT)
    assert server.returncode == 0
    return json.loads(asked.stdout)
