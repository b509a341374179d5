"""Turns conversations into the text that a model was taught to read them as, by the chat template in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.data.fit import Row
from hasten.data.text import TEXT
from hasten.errors import InvalidInput

MESSAGES = "messages"
"""What a sample holds in place of text: a list of {role, content}."""


def with_chats(rows: Iterator[Row], folder: Path | None) -> Iterator[Row]:
    """Rows in which `messages` became `text`, by the tokenizer in the Hugging Face folder; others as they are.

    A conversation that does not end with the assistant ends with what asks it to speak. Templates are run by
    transformers, in Jinja's sandbox. Raises `InvalidInput` for what is no conversation, and where there is no template.
    """
    tokenizer: Any = None
    for row in rows:
        if TEXT in row.inputs or MESSAGES not in row.inputs:
            yield row
            continue
        tokenizer = tokenizer or _open(folder, row.where)
        yield replace(row, inputs={TEXT: _rendered(tokenizer, row.inputs[MESSAGES], row.where)})


def _rendered(tokenizer: Any, messages: Any, where: str) -> str:
    if not isinstance(messages, list) or not messages or not all(_is_message(each) for each in messages):
        raise InvalidInput(
            f"{where}: messages are no conversation", 'write [{"role": "user", "content": "..."}, ...] for each'
        )
    asks = messages[-1]["role"] != "assistant"
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks))
    except Exception as error:
        cause = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{where}: the chat template does not take these messages: {cause}") from None
    begin = tokenizer.bos_token
    if begin and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]:
        text = text.removeprefix(begin)  # the tokenizer puts it there as well
    return text


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _open(folder: Path | None, where: str) -> Any:
    if folder is None:
        raise InvalidInput(
            f"{where} holds messages, and there is no chat template to read them with",
            "a Hugging Face folder brings one for samples in a file; elsewhere give text",
        )
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InvalidInput("messages need transformers", "install the extra", "pip install 'hasten[hf]'") from None
    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise InvalidInput(f"the tokenizer in {folder} cannot be read: {text}", "copy the folder again") from None
    if not found.chat_template:
        raise InvalidInput(f"{folder.name} has no chat template, and {where} holds messages", "give text")
    return found
