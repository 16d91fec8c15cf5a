"""Files of the base model that are copied into a published folder.

Invariant: everything but the weights is the base model's own, byte for byte (a missing padding
token is added, a chat template that cannot hold a game is replaced, and of generation_config.json
the special tokens stay, see `copy_companions`). What a newer
transformers writes for the same model, such as "rope_parameters" in place of "rope_theta" or
"TokenizersBackend" as tokenizer class, is read wrongly or not at all by an older one inside the
grader.
"""

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path

from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.structure import INDEX_FILE, read_json, special_token, weight_files

_COMPANION_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".tiktoken"}
_TOKENIZER_CONFIG = "tokenizer_config.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_GENERATION_CONFIG = "generation_config.json"

MISTRAL_FORMAT = ("consolidated*.safetensors", "params.json", "tekken.json")
"""Files of Mistral's own programs, beside those that all families have."""

logger = logging.getLogger(__name__)


def copy_base_model(base: Path, destination: Path) -> None:
    """Copy the files of the base model, and no others from its folder.

    Raises: `PublishingError`; `OSError` if the disk does not take it.
    """
    weights = weight_files(base)
    needed = sum(file.stat().st_size for file in weights)
    free = shutil.disk_usage(destination).free
    if needed > free:
        raise PublishingError(
            f"the base model's weights need {needed / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB"
            f" are free at {destination.parent}: free some space there."
        )
    for file in weights:
        shutil.copyfile(file, destination / file.name)
    if (base / INDEX_FILE).is_file() and weights[0].name in (base / INDEX_FILE).read_text():
        shutil.copyfile(base / INDEX_FILE, destination / INDEX_FILE)
    copy_companions(base, destination)


def without_foreign_files(base: Path, links: Path) -> Path:
    """Folder of links to all files of `base` but Mistral's own and those of an adapter left beside
    its weights; `base` itself where it has none.

    vLLM would read Mistral's in place of the others: another class, other names of the weights that
    it is sent, and a tokenizer without the base's chat template. transformers would add the adapter
    and freeze all else.

    Args:
        links: is made where it is needed.
    """
    mistral = MISTRAL_FORMAT if (base / "tokenizer.json").is_file() else ()
    foreign = {file for pattern in ("adapter_*", *mistral) for file in base.glob(pattern)}
    if not foreign:
        return base
    links.mkdir(parents=True, exist_ok=True)
    for file in {*base.iterdir()} - foreign:
        (links / file.name).unlink(missing_ok=True)
        (links / file.name).symlink_to(file.absolute())
    return links


def companions(base: Path) -> list[Path]:
    """Configuration, tokenizer and template files of `base`, sorted: what is published as it is.

    Links lead into the folder or to where its weights or its configuration lie, as in a cache of a
    hub; one to anything else could publish a private file.
    """
    known = (base / "config.json", *base.glob("*.safetensors"))
    places = {base.resolve(), *(file.resolve().parent for file in known)}
    found = []
    for file in sorted(base.iterdir()):
        if file.is_file() and _is_companion(file.name):
            if places.isdisjoint(file.resolve().parents):
                logger.warning("not published: %s links to %s", file, file.resolve())
            else:
                found.append(file)
    return found


def copy_companions(base: Path, destination: Path) -> None:
    """Copy configuration, tokenizer and template of `base`; padding defaults to the end token.

    Servers take what a request leaves out from generation_config.json, and a repetition penalty
    there (bases of Qwen 2.5 have one) changes greedy replies too: a digit that was said before
    would be less likely than it was when the model learned and when it was evaluated.
    """
    for file in companions(base):
        shutil.copyfile(file, destination / file.name)
    with suppress(UnverifiedModelError):  # verification refuses a broken one, if a server would
        _keep_special_tokens(destination / _GENERATION_CONFIG)
    end = special_token(destination, "eos_token")
    known = (destination / _TOKENIZER_CONFIG).is_file()
    if end and known and not special_token(destination, "pad_token"):
        _set(destination, pad_token=end)
        logger.info("base model has no padding token: published with its end token for padding")


def put_chat_template(folder: Path, template: str) -> None:
    """Make `template` the one that every server finds: newer ones read a separate file, older
    ones the tokenizer's settings."""
    (folder / _CHAT_TEMPLATE).write_text(template)
    _set(folder, chat_template=template)
    (folder / "chat_template.json").unlink(missing_ok=True)


def keep_only_weights(folder: Path) -> None:
    """Remove every file from `folder` that is no part of its weights."""
    weights = {*weight_files(folder), folder / INDEX_FILE}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file not in weights:
            file.unlink()


def _keep_special_tokens(file: Path) -> None:
    """Remove all but special tokens and versions from a generation_config.json, if it is there."""
    if not file.is_file():
        return
    given = read_json(file)
    kept = {
        name: value
        for name, value in given.items()
        if name.endswith("_token_id") or name in ("_from_model_config", "transformers_version")
    }
    if kept != given:
        file.write_text(json.dumps(kept, indent=2) + "\n")


def _set(folder: Path, **changes: str) -> None:
    """Change the tokenizer's settings in `folder`."""
    file = folder / _TOKENIZER_CONFIG
    file.write_text(json.dumps(read_json(file) | changes, indent=2, ensure_ascii=False) + "\n")


def _is_companion(name: str) -> bool:
    return (
        Path(name).suffix in _COMPANION_SUFFIXES
        and not name.endswith(".index.json")
        and not name.startswith(("adapter_", "trainer_state", "miner_publication"))
    )
