"""Prepared data on disk, memory-mapped, so that data larger than memory can be used for training.

A store is a folder that is either complete or absent: it is written under a temporary name and renamed at the end.
"""

from regard.data.stores.images import ImageStore, write_images
from regard.data.stores.rows import TokenStore, write_store
from regard.data.stores.tokens import TokenStream, write_stream

__all__ = ["ImageStore", "TokenStore", "TokenStream", "write_images", "write_store", "write_stream"]
