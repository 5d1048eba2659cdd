"""Chat templates: rendered as transformers does, in a sandbox, within bounds."""

from datetime import datetime
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.chat_template import (
    ChatMessage,
    ChatTemplate,
    ChatTemplateError,
    ChatTooLongError,
)
from gateway.tokenizer import Tokenizer
from modelfiles.gguf_file import GgufFile
from tests.gateway.text.vocabularies import KEYS

MAX_CHARS = 10_000
# In the manner of the families; each uses something of Jinja that the others do not.
TEMPLATES = {
    "llama3": """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{{ bos_token }}
{% for message in messages if message.role != 'system' %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{{ message['content'] + eos_token }}
{% endif %}
{% endfor %}
""",
    "qwen2.5": """
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "programs": """{% macro turn(m) %}{{ m | tojson }}{% endmacro %}
{% set ns = namespace(seen=0) %}
{% for m in messages %}
  {% if loop.index0 > 5 %}{% break %}{% endif %}
  {% set ns.seen = ns.seen + 1 %}
  {% generation %}{{ turn(m) }}{% endgeneration %}
{% endfor %}
{{ ns.seen }} {{ tools is none }} {{ messages | map(attribute='role') | join(',') }}
{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}
""",
}
CHATS = {
    "question": [("user", "hi")],
    "system first": [("system", " be  kind \n"), ("user", "a<b & \"c\"'d'\u4f60")],
    "turns": [("user", "\n1"), ("assistant", "<think>x</think>\n2 "), ("user", "3")],
}


def _ours(source: str, chat: list[tuple[str, str]]) -> str:
    template = ChatTemplate(source, "<s>", "</s>")
    return template.render([ChatMessage(*turn) for turn in chat], MAX_CHARS)


def _theirs(source: str, chat: list[tuple[str, str]]) -> str:
    rendered, _ = render_jinja_template(
        [[{"role": role, "content": content} for role, content in chat]],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    return str(rendered[0])


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_families_templates_render_as_in_transformers(
    source: str, chat: list[tuple[str, str]]
) -> None:
    assert _ours(source, chat) == _theirs(source, chat)


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_smollm2_renders_as_in_transformers(
    smollm2_path: Path, chat: list[tuple[str, str]]
) -> None:
    source = GgufFile(str(smollm2_path)).metadata[KEYS.CHAT_TEMPLATE]

    assert _ours(source, chat) == _theirs(source, chat)


def test_a_chat_becomes_the_tokens_smollm2_was_trained_on(smollm2: Tokenizer) -> None:
    chat = [ChatMessage("system", "Be brief."), ChatMessage("user", "Why is the sky blue?")]

    ids = smollm2.encode_chat(chat, MAX_CHARS)

    assert smollm2.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_time_is_the_clocks() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3, 4, 5)
    )

    assert template.render([], MAX_CHARS) == "03 Feb 2026"


def test_a_template_refuses_in_its_own_words() -> None:
    chat = [("assistant", "I speak first")]

    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        _ours(TEMPLATES["mistral"], chat)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''.__class__.__mro__[1] }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_a_template_must_not_do_is_an_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        _ours(source, [("user", "hi")])


def test_output_is_bounded_while_it_is_written() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}xx{% endfor %}{% endfor %}"

    with pytest.raises(ChatTooLongError, match="over 10000 characters"):
        _ours(endless, [("user", "hi")])
    assert len(_ours("{% for i in range(5000) %}xx{% endfor %}", [])) == MAX_CHARS


def test_a_broken_template_is_known_before_it_is_used() -> None:
    with pytest.raises(ChatTemplateError, match="the chat template is not valid"):
        ChatTemplate("{% for %}")
