"""Flags that several commands share. Ranges are the server's to check: it names the field."""

from typing import Annotated

import typer

MODEL_HELP = "Catalogue name, Hugging Face id, GGUF file or checkpoint folder."

Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Address = Annotated[
    str, typer.Option(envvar="BATON_ADDRESS", help="Gateway to talk to, host:port.")
]
DEFAULT_ADDRESS = "127.0.0.1:7100"
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds until the request is given up.")]

ServedModel = Annotated[str, typer.Option(help="Model to ask; empty: the only one served.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate.")]
MinTokens = Annotated[int | None, typer.Option(help="No stop before this many tokens.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy. [server default: 1]")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling, in (0, 1].")]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0: all.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="The same seed draws the same tokens.")]
PresencePenalty = Annotated[float | None, typer.Option(help="In [-2, 2].")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="In [-2, 2].")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="In (0, 2]; 1: none.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop at this text; may be repeated.")]
StopTokenId = Annotated[list[int] | None, typer.Option(help="Stop at this token id; repeatable.")]
LogitBias = Annotated[list[str] | None, typer.Option(metavar="ID=BIAS", help="Repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past end of text.")]
