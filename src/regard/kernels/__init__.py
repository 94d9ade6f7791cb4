"""Kernels of our own, for what PyTorch has none for. Only what runs on a GPU imports them."""
