"""Kernels of our own, where there is no GPU: they compile for one, and the interpreter can run them."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="the kernels of a GPU are written in Triton, which is not installed")

from regard.nn.kernels import has_kernels
from regard.nn.kernels.cross_entropy import transpose_bytes

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from regard.nn.kernels import cross_entropy, decoding

HALF, WHOLE, SINGLE, BYTES = "*bf16", "*i64", "*fp32", "*u8"
KINDS = {
    **dict.fromkeys("x y weight bias gain shift residual table position_table delta total".split(), HALF),
    **dict.fromkeys("heads keys values out query_gain key_gain logits".split(), HALF),
    **dict.fromkeys("tokens lengths positions targets".split(), WHOLE),
    **dict.fromkeys("cosine sine parts losses".split(), SINGLE),
    **dict.fromkeys("epsilon scale smoothing gradient_scale".split(), "fp32"),
    **dict.fromkeys("num_outputs num_rows capacity num_sharing width num_tokens num_columns".split(), "i32"),
    "mask": BYTES,
}


def check(kernel, known, **kinds):
    given = {name: "constexpr" if name in known else {**KINDS, **kinds}[name] for name in kernel.arg_names}
    triton.compile(ASTSource(kernel, given, constexprs=known), target=GPUTarget("cuda", 90, 32))


SIZES = {"NUM_INPUTS": 96, "HAS_BIAS": True, "HAS_RESIDUAL": True}
for activation in range(6):
    options = {**SIZES, "ACTIVATION": activation, "IS_GATED": activation == 5}
    check(decoding.linear_few_rows_kernel, {**options, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32})
    one = {"NORM": activation % 3, "HAS_SHIFT": activation % 2 == 0, "BLOCK_N": 4, "BLOCK_K": 32, "PADDED": 128}
    check(decoding.linear_one_row_kernel, {**options, **one})
check(decoding.embed_kernel, {"WIDTH": 96, "HAS_POSITIONS": True, "PADDED": 128})
check(decoding.norm_kernel, {"WIDTH": 96, "NORM": 1, "HAS_SHIFT": True, "HAS_DELTA": True, "PADDED": 128})
for is_self in (True, False):
    for num_parts in (1, 4):
        known = {"NUM_HEADS": 4, "NUM_SHARED": 2, "HEAD_DIM": 32, "NUM_PARTS": num_parts, "CHUNK": 64, "BLOCK": 32}
        switches = {"IS_SELF": is_self, "HAS_MASK": not is_self, "HAS_NORMS": True, "IS_ROTATED": is_self}
        check(decoding.attend_kernel, {**known, **switches})
check(decoding.combine_parts_kernel, {"HEAD_DIM": 32, "NUM_PARTS": 3, "PADDED": 4})
check(cross_entropy.losses_and_gradients, {"BLOCK": 1024}, gradients="*bf16")
check(cross_entropy.losses_and_gradients, {"BLOCK": 1024}, gradients="*fp8e5")
check(cross_entropy.transpose_bytes, {"SIDE": 64}, x=BYTES, y=BYTES)
print("all compile")
"""


@pytest.mark.slow
def test_all_kernels_compile_for_a_gpu():
    """The interpreter lets things pass that the compiler does not, such as a name that changes its type."""
    # Not in this process, where kernels are interpreted.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert made.stdout == "all compile\n", made.stderr


def test_only_what_is_on_a_gpu_is_worked_on_by_kernels():
    assert not has_kernels(torch.zeros(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is for the interpreter")
def test_bytes_are_transposed_square_by_square():
    x = torch.randint(256, (70, 33), dtype=torch.uint8)
    y = torch.zeros(33, 70, dtype=torch.uint8)
    transpose_bytes[(3, 2)](x, y, 70, 33, SIDE=32)
    assert torch.equal(y, x.t())
