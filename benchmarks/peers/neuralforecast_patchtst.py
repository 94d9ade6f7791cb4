"""PatchTST as neuralforecast's users train it: its model class, trainer and data frames.

`pip install neuralforecast`; it is imported where it is used. Shapes and rates are those of Nie et al. (2023), A.1.4.
"""

import logging
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TINY = {"hidden_size": 16, "n_heads": 4, "linear_hidden_size": 128, "dropout": 0.3, "fc_dropout": 0.3}
SMALL = {"hidden_size": 128, "n_heads": 16, "linear_hidden_size": 256, "dropout": 0.2, "fc_dropout": 0.2}


def is_installed() -> bool:
    """Whether neuralforecast can be imported."""
    try:
        import neuralforecast  # noqa: F401  # pyright: ignore[reportMissingImports]  as it may be
    except ImportError:
        return False
    return True


def squared_error(
    values: NDArray[np.float64], *, horizon: int, split: Sequence[int], steps: int, seed: int, device: str,
    input_length: int = 512, **shape: Any,
) -> float:  # fmt: skip
    """The error of standardized values from every origin of the test part; validation ends training early."""
    train, valid, test = split
    values = values[: train + valid + test]
    values = (values - values[:train].mean(axis=0)) / values[:train].std(axis=0)
    every = max(1, min(100, steps // 2))
    stops = {"early_stop_patience_steps": 10, "val_check_steps": every}
    model = _model(
        horizon, input_length, steps, seed, device, learning_rate=1e-3, windows_batch_size=1024, **stops,
        **(shape or TINY),
    )  # fmt: skip
    frame = _frame([values[:, column] for column in range(values.shape[1])])
    found = _forecaster(model).cross_validation(
        frame, val_size=valid, test_size=test, n_windows=None, step_size=1, verbose=False
    )
    return float(((found["PatchTST"] - found["y"]) ** 2).mean())


def training_rate(
    values: NDArray[np.float64], *, horizon: int, input_length: int, windows: int, steps: int, device: str, **shape: Any
) -> float:
    """Windows of one column that are trained on in a second: the median over steps after the first five."""
    from pytorch_lightning.callbacks import Callback  # pyright: ignore[reportMissingImports]  where it is installed

    ends: list[float] = []  # outside of the callback, which is copied with the model

    class Clock(Callback):
        """Notes when a step ends."""

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            ends.append(_now(device))

    model = _model(
        horizon, input_length, steps, 0, device, windows_batch_size=windows, callbacks=[Clock()], **(shape or SMALL)
    )
    frame = _frame([values[:, column] for column in range(values.shape[1])])
    _forecaster(model).fit(frame, val_size=0)
    times = np.diff(ends)[min(5, len(ends) - 2) :]
    return windows / statistics.median(times.tolist())


def forecasting_seconds(
    series: NDArray[np.float64], *, horizon: int, rounds: int = 1, device: str = "cpu", **shape: Any
) -> float:
    """The time to forecast all series, each a row, with a model that has seen a few of them."""
    model = _model(horizon, series.shape[1], 1, 0, device, windows_batch_size=8, **(shape or SMALL))
    forecaster = _forecaster(model)
    longer = [np.concatenate([each, each]) for each in series[:4]]
    forecaster.fit(_frame(longer), val_size=0)
    frame, found = _frame(list(series)), []
    for _ in range(rounds):
        began = _now(device)
        forecaster.predict(frame)
        found.append(_now(device) - began)
    return statistics.median(found)


def _model(horizon: int, input_length: int, steps: int, seed: int, device: str, **more: Any) -> Any:
    from neuralforecast.losses.pytorch import MSE  # pyright: ignore[reportMissingImports]  where it is installed
    from neuralforecast.models import PatchTST  # pyright: ignore[reportMissingImports]  where it is installed

    quiet = {
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False,
    }  # fmt: skip
    return PatchTST(
        h=horizon, input_size=input_length, patch_len=16, stride=8, revin_subtract_last=False, loss=MSE(),
        scaler_type="identity", max_steps=steps, random_seed=seed, accelerator="gpu" if device == "cuda" else "cpu",
        devices=1, **quiet, **more,
    )  # fmt: skip


def _forecaster(model: Any) -> Any:
    from neuralforecast import NeuralForecast  # pyright: ignore[reportMissingImports]  where it is installed

    warnings.filterwarnings("ignore")
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return NeuralForecast(models=[model], freq="h")


def _frame(series: Sequence[NDArray[np.float64]]) -> Any:
    """One series after the other, as neuralforecast reads them."""
    import pandas  # pyright: ignore[reportMissingImports]  where it is installed

    lengths = [len(each) for each in series]
    times = np.datetime64("2020-01-01T00", "ns") + np.arange(max(lengths)) * np.timedelta64(1, "h")
    return pandas.DataFrame(
        {
            "unique_id": np.repeat([f"series {number}" for number in range(len(series))], lengths),
            "ds": np.concatenate([times[:length] for length in lengths]),
            "y": np.concatenate(series),
        }
    )


def _now(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()
