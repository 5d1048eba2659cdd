"""The same service with nothing but gRPC and the generated stubs, without asyncio.

baton up                                  # in another terminal
python examples/plain_grpc.py "What is gravity?"
"""

import sys

import grpc
from grpc_status import rpc_status

from baton.v1 import gateway_pb2_grpc, generation_pb2


def ask(question: str) -> None:
    request = generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(
            chat=generation_pb2.Chat(
                messages=[
                    generation_pb2.ChatMessage(role=generation_pb2.CHAT_ROLE_USER, content=question)
                ]
            )
        ),
        sampling=generation_pb2.SamplingParams(max_tokens=100, temperature=0.0),
    )
    with grpc.insecure_channel("127.0.0.1:7100") as channel:
        stub = gateway_pb2_grpc.GenerationServiceStub(channel)
        for message in stub.GenerateStream(request, timeout=60):
            for delta in message.deltas:
                print(delta.text, end="", flush=True)
            if message.HasField("summary"):
                print(f"\nrequest {message.summary.request_id}")


if __name__ == "__main__":
    try:
        ask(" ".join(sys.argv[1:]) or "What is gravity?")
    except grpc.RpcError as error:
        # What a service says has details: the reason, the fields, the time to retry.
        print(rpc_status.from_call(error) or error, file=sys.stderr)
        sys.exit(1)
