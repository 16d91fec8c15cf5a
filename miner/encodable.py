"""Text that every tokenizer, file and server takes."""


def encodable(text: str) -> str:
    """`text` with "?" for each half of an escaped emoji, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
