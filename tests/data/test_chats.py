"""Conversations become text by the chat template in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hasten.data import SampleSet, ingest, ingest_here
from hasten.data.text import AS_TEXT
from hasten.errors import InvalidInput
from hasten.model import Facts, Model

pytest.importorskip("transformers")

LANGUAGE = Model(Path("none.xml"), "openvino", "0", AS_TEXT, Facts(0, 0))
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role }}: {{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
ASKED = [{"role": "user", "content": "why?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "so"}]


def speaks(folder: Path, template: str | None = TEMPLATE, begins: bool = True) -> Path:
    """A folder with a tokenizer of words; with `begins` it puts its first token in front by itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if begins:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def read(tmp_path: Path, chat: Path | None, *lines: Any) -> list[str]:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = ingest(path, LANGUAGE, tmp_path / "samples", chat=chat)
    return [str(sample["text"]) for sample in SampleSet.open(samples.path)]


def test_conversations_read_as_the_template_says_and_ask_for_an_answer_that_is_not_there(tmp_path: Path) -> None:
    chat = speaks(tmp_path / "own")
    found = read(tmp_path, chat, {"messages": ASKED}, {"text": "as it is"}, {"messages": ANSWERED})
    assert found == ["user: why?;assistant:", "as it is", "user: why?;assistant: so;"]
    assert read(tmp_path, speaks(tmp_path / "bare", begins=False), {"messages": ASKED}) == ["<s>user: why?;assistant:"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ("why?", "line 1: messages are no conversation"),
        ([], "no conversation"),
        ([{"role": "user", "content": 3}], "no conversation"),
        ([{"role": "tool", "content": "x"}], "does not take these messages: no tools"),
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path: Path, messages: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        read(tmp_path, speaks(tmp_path / "own"), {"messages": messages})


def test_without_a_template_the_error_says_so_and_a_template_reaches_nothing(tmp_path: Path) -> None:
    for chat, told in (
        (speaks(tmp_path / "silent", None), "silent has no chat template"),
        (speaks(tmp_path / "evil", "{{ ''.__class__.__mro__[1].__subclasses__() }}"), "does not take"),
    ):
        with pytest.raises(InvalidInput, match=told):
            read(tmp_path, chat, {"messages": ASKED})
    with pytest.raises(InvalidInput, match="no chat template to read them with"):
        ingest_here([{"messages": ASKED}], LANGUAGE, tmp_path / "samples")
