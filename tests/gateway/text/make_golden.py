"""Writes golden_tokens.json: what llama.cpp makes of the corpus under each tokenizer type.

Needs the bench extra (llama-cpp-python) and the default model:
    .venv/bin/python -m tests.gateway.text.make_golden
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import llama_cpp

from chassis.model_store import resolve
from tests.gateway.text.corpus import CORPUS
from tests.gateway.text.vocabularies import write_vocabulary

GOLDEN = Path(__file__).with_name("golden_tokens.json")
# One of each distinct way of cutting text into words, and SentencePiece.
KINDS = [
    "smollm",
    "llama-bpe",
    "dbrx",
    "qwen2",
    "gpt-2",
    "default",
    "tekken",
    "gpt-4o",
    "spm",
]


def main() -> None:
    smollm2 = resolve("smollm2-135m").path
    with tempfile.TemporaryDirectory() as folder:
        cases = {kind: _tokens(write_vocabulary(Path(folder), smollm2, kind)) for kind in KINDS}
    lines = [
        f'    "{kind}": [\n' + ",\n".join(f"      {ids}" for ids in rows) + "\n    ]"
        for kind, rows in cases.items()
    ]
    made_by = (
        f"python -m tests.gateway.text.make_golden, llama-cpp-python {version('llama-cpp-python')}"
    )
    GOLDEN.write_text(
        f'{{\n  "made_by": {json.dumps(made_by)},\n  "token_ids": {{\n'
        + ",\n".join(lines)
        + "\n  }\n}\n"
    )


def _tokens(path: Path) -> list[list[int]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True, special=True) for text in CORPUS]


if __name__ == "__main__":
    main()
