"""Prompts in their three forms: checked before, and turned into token ids."""

from collections.abc import Sequence

from baton.v1.generation_pb2 import (
    CHAT_ROLE_ASSISTANT,
    CHAT_ROLE_SYSTEM,
    CHAT_ROLE_USER,
    Chat,
    Prompt,
)
from chassis.complaints import Complaints, refuse
from chassis.reasons import Reason
from gateway.chat_template import ChatMessage, ChatTemplateError, ChatTooLongError
from gateway.model_limits import ModelLimits
from gateway.tokenizer import Tokenizer

_ROLE_NAMES = {
    CHAT_ROLE_SYSTEM: "system",
    CHAT_ROLE_USER: "user",
    CHAT_ROLE_ASSISTANT: "assistant",
}
# What a template may write besides the messages: control tokens, role names, a system prompt.
_MAX_TEMPLATE_CHARS = 1 << 16


# A turn of a conversation takes as long to render as so many characters to encode, and this many
# token ids as long to check as one.
_CHARS_PER_MESSAGE = 100
_IDS_PER_CHAR = 16


def check_prompt(prompt: Prompt, limits: ModelLimits) -> None:
    """Refuses what can be refused at once, whatever the prompt's size: counts, and no contents.

    Raises InvalidArgument.
    """
    form = prompt.WhichOneof("form")
    if form is None:
        raise refuse(Reason.PROMPT_MISSING, "prompt", "set one of text, token_ids and chat")
    if form == "token_ids":
        _check_num_ids(prompt.token_ids.ids, "prompt.token_ids.ids", limits)
    elif form == "chat" and len(prompt.chat.messages) > limits.max_context_tokens:
        raise refuse(
            Reason.PROMPT_TOO_LARGE,
            "prompt.chat.messages",
            f"{len(prompt.chat.messages)} messages do not fit a context of "
            f"{limits.max_context_tokens} tokens",
        )


def check_token_ids(ids: Sequence[int], field: str, limits: ModelLimits) -> None:
    """Raises InvalidArgument for no ids, more than a context holds, or one that is unknown."""
    _check_num_ids(ids, field, limits)
    if max(ids) >= limits.vocab_size:
        index = next(i for i, token_id in enumerate(ids) if token_id >= limits.vocab_size)
        raise refuse(
            Reason.TOKEN_ID_UNKNOWN,
            f"{field}[{index}]",
            f"{ids[index]} is not below the vocabulary size {limits.vocab_size}",
        )


def reading_size(prompt: Prompt) -> int:
    """How long ``encode_prompt`` will take, in characters of plain text."""
    if prompt.HasField("token_ids"):
        return len(prompt.token_ids.ids) // _IDS_PER_CHAR
    # The text itself would have to be decoded first.
    return prompt.ByteSize() + _CHARS_PER_MESSAGE * len(prompt.chat.messages)


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, limits: ModelLimits) -> list[int]:
    """Token ids of a prompt that passed ``check_prompt``; safe, and for a long one best, in a
    thread.

    Raises InvalidArgument for wrong contents, and where there is no chat template, or it refuses
    the messages.
    """
    form = prompt.WhichOneof("form")
    if form == "token_ids":
        check_token_ids(prompt.token_ids.ids, "prompt.token_ids.ids", limits)
        return list(prompt.token_ids.ids)
    if form == "text":
        _check_size([prompt.text], "prompt.text", limits)
        return tokenizer.encode(prompt.text)
    _check_chat(prompt.chat, limits)
    return _encode_chat(prompt.chat, tokenizer, limits)


def _check_num_ids(ids: Sequence[int], field: str, limits: ModelLimits) -> None:
    if not ids:
        raise refuse(Reason.PROMPT_EMPTY, field, "must not be empty")
    if len(ids) > limits.max_context_tokens:
        raise refuse(
            Reason.CONTEXT_EXCEEDED,
            field,
            f"{len(ids)} tokens are more than the context of {limits.max_context_tokens}",
        )


def _check_size(texts: Sequence[str], field: str, limits: ModelLimits) -> None:
    if not any(texts):
        raise refuse(Reason.PROMPT_EMPTY, field, "must not be empty")
    # Counting characters first spares the bytes of a text that is too long anyway.
    num_chars = sum(map(len, texts))
    num_bytes = num_chars
    if num_chars <= limits.max_prompt_bytes:
        num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > limits.max_prompt_bytes:
        raise refuse(
            Reason.PROMPT_TOO_LARGE,
            field,
            f"over {limits.max_prompt_bytes} bytes, more than a context of "
            f"{limits.max_context_tokens} tokens holds",
        )


def _check_chat(chat: Chat, limits: ModelLimits) -> None:
    field = "prompt.chat.messages"
    _check_size([message.content for message in chat.messages], field, limits)
    complaints = Complaints()
    for i, message in enumerate(chat.messages):
        if message.role not in _ROLE_NAMES:
            complaints.add(
                Reason.CHAT_ROLE_INVALID,
                f"{field}[{i}].role",
                "must be SYSTEM, USER or ASSISTANT",
            )
        elif message.role == CHAT_ROLE_SYSTEM and i > 0:
            complaints.add(
                Reason.CHAT_ORDER_INVALID, f"{field}[{i}].role", "SYSTEM may only come first"
            )
    last = len(chat.messages) - 1
    if chat.messages[last].role in (CHAT_ROLE_SYSTEM, CHAT_ROLE_ASSISTANT):
        complaints.add(
            Reason.CHAT_ORDER_INVALID, f"{field}[{last}].role", "the last message must be USER's"
        )
    complaints.raise_any()


def _encode_chat(chat: Chat, tokenizer: Tokenizer, limits: ModelLimits) -> list[int]:
    if tokenizer.chat_template is None:
        raise refuse(
            Reason.CHAT_UNSUPPORTED, "prompt.chat", "the model has no chat template; send text"
        )
    messages = [ChatMessage(_ROLE_NAMES[m.role], m.content) for m in chat.messages]
    try:
        return tokenizer.encode_chat(messages, limits.max_prompt_bytes + _MAX_TEMPLATE_CHARS)
    except ChatTooLongError as error:
        raise refuse(Reason.PROMPT_TOO_LARGE, "prompt.chat", str(error)) from error
    except ChatTemplateError as error:
        raise refuse(Reason.CHAT_TEMPLATE_REFUSED, "prompt.chat", str(error)) from error
