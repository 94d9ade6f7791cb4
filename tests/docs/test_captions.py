"""The commands and the program of the page on captions run as they stand there."""

import base64
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page
from tests.golden.data import lines

from regard.data.builtin.scenes import generate_scenes

SMALL = "--set task.image.size=16 --set model.num_layers=1 --set model.model_dim=16"
DECODER = "--set task.decoder_dim=16 --set task.decoder_layers=1 --set data.splits=[0.6,0.2,0.2]"


@pytest.fixture
def pictures(workplace: Path) -> Path:
    """A workplace with pictures of labels, and with captioned pictures."""
    lines(workplace / "drawn", 40).rename(workplace / "labels")
    table = ["image,caption"]
    for number, (image, caption, _) in enumerate(generate_scenes(60, 5)):
        name = f"{number // 2}.png"
        (workplace / name).write_bytes(base64.b64decode(image.partition(",")[2]))
        table.append(f"{name},{caption}")
    (workplace / "captions.csv").write_text("\n".join(table) + "\n")
    (workplace / "picture.png").write_bytes((workplace / "0.png").read_bytes())
    return workplace


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(pictures, run_inside, capsys):
    page = Page(ROOT / "docs" / "captions.md")
    (toml,) = page.blocks("toml")
    (pictures / "one-vector.toml").write_text(toml)
    for command in page.short_commands():
        command = command.replace("--steps 5", "--steps 2").replace(
            "data show scenes --rows 4 > scenes.tsv", "data list"
        )
        if " train labels/" in command:
            command += f" {SMALL}"
        elif " train " in command or " compare " in command:
            size = " --set data.num_rows=120" if " scenes " in command else ""
            heads = " --set model.num_layers=1" if " compare " in command else f" {SMALL}"
            command += f"{heads} {DECODER}{size}"
        elif " finetune " in command:
            command += f" {DECODER}"
        code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert out, f"{command} printed nothing"  # a model of two steps may write an empty caption
    (program,) = page.blocks("python")
    exec(program, {})
    assert (pictures / "attention.png").stat().st_size
    assert (pictures / "attention.html").stat().st_size
