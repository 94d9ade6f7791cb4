r"""Vectors of texts with the same label are drawn together, and others apart.

Khosla et al., "Supervised Contrastive Learning" (2020), equation 2, https://arxiv.org/abs/2004.11362; beside
cross-entropy, as in Gunel et al., "Supervised Contrastive Learning for Pre-trained Language Model Fine-tuning" (2020),
https://arxiv.org/abs/2011.01403: where labels are few, each pair of texts is one more thing to learn from.

Dimensions: `batch` texts, `model` width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

TEMPERATURE = 0.1
"""What cosines are divided by: the smaller, the more the nearest others count."""


def contrast_losses(
    vectors: Float[Tensor, "batch model"], labels: Int[Tensor, " batch"], counts: Bool[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    r"""How far each vector is from those of its label, among all that count.

    With cosines $s_{ij}$, temperature $\tau$ and the others of its label $P_i$ it is

    $$ -\frac{1}{|P_i|} \sum_{p \in P_i} \log \frac{e^{s_{ip} / \tau}}{\sum_{j \neq i} e^{s_{ij} / \tau}} $$

    and 0 for a vector that is the only one of its label.
    """
    unit = F.normalize(vectors, dim=-1)
    is_other = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device) & counts
    cosines = unit @ unit.T
    cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))  # autocast may have taken it in less
    # Not minus infinity: of a vector by itself nothing would be left, and its loss would be no number.
    lowest = torch.finfo(cosines.dtype).min
    chances = (cosines / TEMPERATURE).masked_fill(~is_other, lowest).log_softmax(dim=-1)
    is_like = (labels[:, None] == labels) & is_other
    return -(chances * is_like).sum(dim=1) / is_like.sum(dim=1).clamp(min=1)
