"""The commands and the program of the page on pictures run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.golden.data import lines

from regard.interop.efficientnet import foreign_name
from regard.models.efficientnet import EfficientNet

SMALL = {
    "vit": "--set model.num_layers=1 --set model.model_dim=16 --set model.num_heads=2",
    "cnn": "--set model.num_layers=1 --set model.model_dim=16",
    "pixels": "--set model.num_layers=1 --set model.model_dim=16 --set task.size=5",
}


@pytest.fixture
def pictures(workplace: Path) -> Path:
    """A workplace with a folder of pictures, one picture beside it, and random weights in place of pretrained ones."""
    lines(workplace / "drawn", 40).rename(workplace / "pictures")
    (workplace / "photo.png").write_bytes((workplace / "pictures" / "bars" / "0.png").read_bytes())
    torch.manual_seed(0)
    model = EfficientNet.from_preset("efficientnet-lite0")
    weights = {foreign_name(name): tensor.float().contiguous() for name, tensor in model.state_dict().items()}
    head = {"_fc.weight": torch.randn(3, 1_280).float(), "_fc.bias": torch.zeros(3).float()}
    save_file(weights | head, workplace / "efficientnet-lite0.safetensors")
    return workplace


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(pictures, run_inside, capsys):
    from tests.docs.conftest import ROOT, Page

    page = Page(ROOT / "docs" / "pictures.md")
    for command in page.short_commands():
        kind = "pixels" if "image-generation" in command else "vit" if "--model vit" in command else "cnn"
        is_small = " train " in command or (kind == "pixels" and " compare " in command)
        more = f" {SMALL[kind]}" if is_small else ""
        if kind == "pixels" and " train " in command:
            more += " --set model.num_heads=2"
        code, out, err = run_inside(command + more)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (pictures / "grid.png").is_file()
    assert (pictures / "drawn.html").is_file()
    assert (pictures / "runs" / "cnn" / "report.html").is_file()
    labels, neighbors = page.blocks("python")
    exec(labels, {})
    assert capsys.readouterr().out.strip() in ("['bars']", "['stripes']")
    assert (pictures / "python.html").is_file()
    exec(neighbors, {})
    assert capsys.readouterr().out.strip() == "3"
