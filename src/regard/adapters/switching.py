"""Several adapters on one frozen model, of which one is in use at a time, or none.

All share the weights of the model: another adapter costs what it has learned
and no more. To switch is to put other layers in the same places, so whatever a
model does with an adapter in use is exactly what it does with that adapter alone.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from regard.adapters.fused import Frozen
from regard.adapters.lora import (
    LoraConfig,
    LoRALinear,
    adapted,
    adapted_layers,
    copy_tensors,
    fitting_layers,
    linear_layers,
    pack_body,
    require_unshared,
    tensors_of,
)
from regard.adapters.quantized import Bits
from regard.config import nearest
from regard.errors import ConfigError


class AdapterSet:
    """Named adapters of `model`, which is frozen. They may differ in every setting but the bits of the frozen weights.

    Example:
        adapters = AdapterSet(model)
        adapters.add("formal", formal.config, formal.tensors)
        adapters.add("casual", casual.config, casual.tensors)
        adapters.use("formal")
        model(tokens)
        adapters.use(None)  # the model by itself
    """

    def __init__(self, model: nn.Module, *, bits: Bits | None = None, parked: torch.device | str | None = None) -> None:
        """`parked` is the device that keeps what is not in use; unset, adapters stay where the model is."""
        if adapted_layers(model):
            raise ConfigError("the model is adapted already: merge its adapter first")
        if bits is not None:
            pack_body(model, bits=bits)
        self._model = model.requires_grad_(False)
        self._bits: Bits | None = bits
        self._parked = None if parked is None else torch.device(parked)
        self._bases: dict[str, Frozen] = linear_layers(model)
        self._adapters: dict[str, dict[str, LoRALinear]] = {}
        self._current: str | None = None

    @property
    def names(self) -> list[str]:
        return list(self._adapters)

    @property
    def current(self) -> str | None:
        """The adapter in use."""
        return self._current

    def add(self, name: str, config: LoraConfig, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Hold one more adapter, as `lora_tensors` gave it, or untrained. It is not yet in use."""
        if name in self._adapters:
            raise ConfigError(f"there is an adapter {name!r} already")
        if config.bits != self._bits:
            raise ConfigError(
                "adapters of one model share its frozen weights, "
                f"got {config.bits=} for {name!r} and bits={self._bits} for the model"
            )
        chosen = fitting_layers(self._bases, config.targets)
        require_unshared(self._model, {each: self._bases[each] for each in chosen})
        layers = {each: adapted(self._bases[each], config) for each in chosen}
        if tensors is not None:
            copy_tensors(layers, tensors)
        self._adapters[name] = layers
        if self._parked is not None:
            _move(layers, self._parked)

    def use(self, name: str | None) -> None:
        """Let the model have this adapter, and no other; None leaves the model by itself."""
        layers = {} if name is None else self._layers(name)
        if self._current is not None:
            before = self._adapters[self._current]
            for each in before:
                self._model.set_submodule(each, self._bases[each])
            if self._parked is not None:
                _move(before, self._parked)
        _move(layers, None)
        for each, layer in layers.items():
            self._model.set_submodule(each, layer.train(layer.base.training))
        self._current = name

    def tensors(self, name: str) -> dict[str, Tensor]:
        """What an adapter has learned, by name."""
        return tensors_of(self._layers(name))

    def parameters(self, name: str) -> Iterator[nn.Parameter]:
        """What an adapter learns, to hand to an optimizer."""
        for layer in self._layers(name).values():
            yield from layer.parts().values()

    def _layers(self, name: str) -> dict[str, LoRALinear]:
        if name not in self._adapters:
            raise ConfigError(f"there is no adapter {name!r}{nearest(name, self.names) if self.names else ''}")
        return self._adapters[name]


def _move(layers: Mapping[str, LoRALinear], device: torch.device | None) -> None:
    """Put what adapters have learned on a device, or where the layers are that they adapt."""
    for layer in layers.values():
        place = device or next(iter(layer.base.state_dict().values())).device
        for parameter in layer.parts().values():
            parameter.data = parameter.data.to(place)
