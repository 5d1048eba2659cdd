"""What tells the KV layouts of workers apart (protocol 2.4)."""

from collections.abc import Sequence

from baton.v1 import kv_transfer_pb2


def layout_differences(layouts: Sequence[tuple[str, kv_transfer_pb2.KvLayout]]) -> str:
    """Says for people what each has in every field in which not all agree.

    Each is named by whose it is: "a has dtype float32, b has dtype bfloat16".
    """
    names = [field.name for field in kv_transfer_pb2.KvLayout.DESCRIPTOR.fields]
    differing = [name for name in names if len({getattr(each, name) for _, each in layouts}) > 1]
    return ", ".join(
        f"{whose} has {name} {getattr(layout, name)}"
        for name in differing
        for whose, layout in layouts
    )
