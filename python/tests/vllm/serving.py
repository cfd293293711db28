"""A vLLM server with the plug-in and a client that reads a stream: for real_engine.py."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time

START_SECONDS = 300


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def server(model, environment, log, *arguments):
    """(process, port) of `vllm serve` with two ranks, ready for requests; ended whatever happens."""
    port = free_port()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port),
             "--host", "127.0.0.1", "--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "512",
             "--max-num-seqs", "4", "--max-num-batched-tokens", "256", "--dtype", "bfloat16", *arguments],
            env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + START_SECONDS
            while not answers(port):
                assert process.poll() is None and time.monotonic() < end, open(log, encoding="utf-8").read()[-4000:]
                time.sleep(0.5)
            yield process, port
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)  # TimeoutExpired names the command


def answers(port):
    try:
        return get(port, "/health")[0] == 200
    except OSError:
        return False


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def stream(port, model, prompt, tokens):
    """Yields what the stream of a greedy completion sends: a dict for each event, "[DONE]" at a proper end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", headers={"Content-Type": "application/json"}, body=json.dumps(
            dict(model=model, prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, stream=True,
                 return_token_ids=True)))
        response = connection.getresponse()
        for line in response:
            text = line.decode().strip()
            if text.startswith("data: "):
                data = text.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)


def token_ids(events):
    return [token for event in events if isinstance(event, dict) and "choices" in event
            for choice in event["choices"] for token in choice.get("token_ids") or []]
