"""Adapters: parameter-efficient fine-tuning of frozen models.

lora        LoRA and DoRA: trainable low-rank updates of frozen linear layers
quantized   frozen weights in 8 or 4 bits (QLoRA)
"""

from regard.adapters.lora import LoraConfig, LoRALinear, add_lora, load_lora, lora_tensors, merge_lora
from regard.adapters.quantized import QuantizedLinear

__all__ = ["LoRALinear", "LoraConfig", "QuantizedLinear", "add_lora", "load_lora", "lora_tensors", "merge_lora"]
