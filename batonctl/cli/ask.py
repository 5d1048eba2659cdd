"""Commands that talk to a gateway: generate, chat."""

from typing import Annotated

import typer

from batonctl.cli import flags


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads it from stdin.")
    ],
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat PROMPT as a chat message to be answered.")
    ] = False,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message, with --chat.")] = "",
    model: flags.ServedModel = "",
    address: flags.Address = flags.DEFAULT_ADDRESS,
    timeout: flags.Timeout = 600.0,
    json: flags.Json = False,
    n: Annotated[int | None, typer.Option("--n", help="Number of choices, at most 16.")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Log probabilities with this many alternatives (--json).")
    ] = None,
    max_tokens: flags.MaxTokens = None,
    min_tokens: flags.MinTokens = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    min_p: flags.MinP = None,
    seed: flags.Seed = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    stop: flags.Stop = None,
    stop_token_id: flags.StopTokenId = None,
    logit_bias: flags.LogitBias = None,
    ignore_eos: flags.IgnoreEos = False,
) -> None:
    """Continue a text and print it as it comes.

    What is not given is the server's to choose: temperature 1, nothing cut off, a seed of its own.
    """
    from batonctl.ask_options import AskOptions, SamplingOptions
    from batonctl.generate import run_generate

    sampling = SamplingOptions(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        n=n,
        logprobs=logprobs,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        logit_bias=tuple(logit_bias or ()),
        ignore_eos=ignore_eos,
    )
    ask = AskOptions(address=address, model=model, timeout=timeout, json=json, sampling=sampling)
    run_generate(prompt, ask, as_chat=chat, system=system)


def chat(
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message.")] = "",
    model: flags.ServedModel = "",
    address: flags.Address = flags.DEFAULT_ADDRESS,
    timeout: flags.Timeout = 600.0,
    json: flags.Json = False,
    max_tokens: flags.MaxTokens = None,
    min_tokens: flags.MinTokens = None,
    temperature: flags.Temperature = 0.7,
    top_p: flags.TopP = 0.95,
    top_k: flags.TopK = None,
    min_p: flags.MinP = None,
    seed: flags.Seed = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    stop: flags.Stop = None,
) -> None:
    """Talk with the model, turn by turn.

    Reads lines from a pipe as well. /reset forgets the conversation, /quit (or end of input)
    leaves, Ctrl-C stops an answer.
    """
    from batonctl.ask_options import AskOptions, SamplingOptions
    from batonctl.chat import run_chat

    sampling = SamplingOptions(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
    )
    ask = AskOptions(address=address, model=model, timeout=timeout, json=json, sampling=sampling)
    run_chat(ask, system=system)
