"""Text to token ids and back: tokenizers, and chat templates."""

from regard.text.chat import Chat, Message
from regard.text.tokenizer import TextStreamer, Tokenizer, load_tokenizer, train_tokenizer

__all__ = ["Chat", "Message", "TextStreamer", "Tokenizer", "load_tokenizer", "train_tokenizer"]
