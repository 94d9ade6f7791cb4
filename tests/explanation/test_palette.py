"""The colours of models: seen well on paper and on slate, and told apart by all eyes."""

from itertools import combinations

import numpy as np
import pytest

from regard.explanation.colors import PALETTE

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# at severity 1: what eyes without one kind of cone see of linear red, green and blue.
EYES = {
    "common": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson, "A perceptual color space for image processing" (2020).
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize(("time", "background"), [(0, "#ffffff"), (1, "#1a1d24")], ids=["day", "night"])
def test_colours_can_be_told_apart_by_all_eyes(time: int, background: str, eyes: str):
    colors = np.array([linear(color[time]) for color in PALETTE])
    luminance = np.array([0.2126, 0.7152, 0.0722])
    light, dark = sorted([colors @ luminance, np.full(len(colors), linear(background) @ luminance)], key=np.sum)[::-1]
    assert ((light + 0.05) / (dark + 0.05)).min() >= 3.0  # what WCAG 2.1 asks of graphics
    seen = np.clip(colors @ np.array(EYES[eyes]).T, 0.0, 1.0)
    places = np.cbrt(seen @ np.array(CONES).T) @ np.array(OKLAB).T
    distances = [float(np.linalg.norm(a - b)) for a, b in combinations(places, 2)]
    assert min(distances) > 0.07  # 0.02 is about the least that can be seen
