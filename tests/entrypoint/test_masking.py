"""Secrets stay out of what is printed."""

from collections.abc import Callable

import pytest

from entrypoint.console import mask, mask_url, print_line, print_text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://10.0.0.2:8000", "http://10.0.0.2:8000"),
        ("https://me:pass@host/p", "https://***@host/p"),
        ("https://bucket/x.json?X-Amz-Signature=abc", "https://bucket/x.json?***"),
        ("https://host/x#token=abc", "https://host/x?***"),
        ("http://[::1", "***"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_urls_inside_a_text() -> None:
    assert mask("see 'https://a:b@h/p?q=1' now", {}) == "see 'https://***@h/p?***' now"


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "password"])
def test_values_of_secret_variables(name: str) -> None:
    assert mask("it said: abcdef123!", {name: "abcdef123"}) == "it said: ***!"


@pytest.mark.parametrize(
    ("name", "value"),
    [("TOKENIZERS_PARALLELISM", "false-false"), ("HF_TOKEN", "no"), ("MONKEY", "banana")],
)
def test_ordinary_words_are_left_alone(name: str, value: str) -> None:
    assert mask(f"value {value}", {name: value}) == f"value {value}"


@pytest.mark.parametrize("write", [print_line, print_text])
def test_printed_lines_are_masked(
    write: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write("fetching https://me:hunter2@models.example/a?sig=hunter2")
    said = capsys.readouterr().out
    assert "https://***@models.example/a?***\n" in said
    assert "hunter2" not in said
