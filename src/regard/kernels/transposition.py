"""A matrix of bytes, transposed square by square. In Triton; see `decoding`."""

# pyright: basic, reportMissingParameterType=false
# ruff: noqa: N803  what is known to the compiler is in capitals

import triton.language as tl

from regard.kernels.jit import kernel


@kernel
def transpose_bytes(x, y, num_rows, num_columns, SIDE: tl.constexpr):
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    square = tl.load(x + rows.to(tl.int64)[:, None] * num_columns + columns[None, :], mask=inside, other=0)
    inside = (columns < num_columns)[:, None] & (rows < num_rows)[None, :]
    tl.store(y + columns.to(tl.int64)[:, None] * num_rows + rows[None, :], tl.trans(square), mask=inside)
