"""Properties of molecules as chemprop's users learn them: its message passing network with its default settings."""

from collections.abc import Sequence
from typing import Any

EPOCHS, BATCH = 50, 64


def properties_by_chemprop(
    train: Sequence[tuple[str, float]],
    valid: Sequence[tuple[str, float]],
    texts: Sequence[str],
    *,
    are_labels: bool,
    seed: int,
    device: str,
    epochs: int = EPOCHS,
) -> list[float]:
    """Train on molecules with a number or a label 0 or 1, and predict that of others; the best epoch is kept."""
    import numpy as np
    import torch
    from chemprop import data, models, nn
    from lightning import pytorch as lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    lightning.seed_everything(seed)

    def dataset(rows: Sequence[tuple[str, float]]) -> Any:
        points = [data.MoleculeDatapoint.from_smi(text, np.array([number])) for text, number in rows]
        return data.MoleculeDataset(points)

    learned, checked = dataset(train), dataset(valid)
    ending = None
    if are_labels:
        predictor: Any = nn.BinaryClassificationFFN()
    else:
        scaler = learned.normalize_targets()
        checked.normalize_targets(scaler)
        ending = nn.UnscaleTransform.from_standard_scaler(scaler)
        predictor = nn.RegressionFFN(output_transform=ending)
    model = models.MPNN(nn.BondMessagePassing(), nn.NormAggregation(), predictor, batch_norm=False)
    keep = ModelCheckpoint(monitor="val_loss", save_top_k=1)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[keep],
    )
    loaders = [
        data.build_dataloader(learned, batch_size=BATCH, seed=seed),
        data.build_dataloader(checked, batch_size=BATCH, shuffle=False),
    ]
    trainer.fit(model, *loaders)
    best = torch.load(keep.best_model_path, weights_only=False)  # written a moment ago, by this process
    model.load_state_dict(best["state_dict"])
    new = data.build_dataloader(dataset([(text, 0.0) for text in texts]), batch_size=BATCH, shuffle=False)
    found = trainer.predict(model, new)
    return torch.cat(found).flatten().tolist()
