"""GGUF files, the format of llama.cpp: read in the names of Hugging Face, and written."""

from regard.interop.gguf.reading import read_gguf, recognizes_gguf
from regard.interop.gguf.writing import NumberType, write_gguf
from regard.interop.importing import Importer

GGUF = Importer(name="gguf", description="a GGUF file (.gguf)", recognizes=recognizes_gguf, read=read_gguf)

__all__ = ["GGUF", "NumberType", "read_gguf", "write_gguf"]
