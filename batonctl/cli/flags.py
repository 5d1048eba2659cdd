"""Flags that several commands share. Ranges are the server's to check: it names the field."""

from typing import Annotated

import typer

from batonctl.address import require_address

MODEL_HELP = "Catalogue name, Hugging Face id, GGUF file or checkpoint folder."
HOST_PORT = "HOST:PORT"

Model = Annotated[str, typer.Option(metavar="MODEL", help=MODEL_HELP)]
Address = Annotated[
    str,
    typer.Option(
        envvar="BATON_ADDRESS",
        parser=require_address,
        metavar=HOST_PORT,
        help="Gateway to talk to.",
    ),
]
DEFAULT_ADDRESS = "127.0.0.1:7100"
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Timeout = Annotated[
    float,
    typer.Option(min=0.001, metavar="SECONDS", help="Until the request is given up."),
]

ServedModel = Annotated[
    str, typer.Option(metavar="NAME", help="Model to ask; empty: the only one served.")
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Most tokens to generate. [default: what the context leaves]")
]
MinTokens = Annotated[int | None, typer.Option(help="No stop before this many tokens.")]
Temperature = Annotated[float | None, typer.Option(help="In [0, 2]; 0 is greedy.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling, in (0, 1]; 1: off.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0: all.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="The same seed draws the same tokens.")]
PresencePenalty = Annotated[float | None, typer.Option(help="In [-2, 2].")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="In [-2, 2].")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="In (0, 2]; 1: none.")]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text; repeatable.")
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(metavar="ID", help="Stop at this token; repeatable.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=BIAS", help="Add to this token's logit; repeatable."),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past end of text.")]
