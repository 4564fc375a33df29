"""The `ollama` package chats, calls a tool and sends back its result, completes, embeds, and reads refusals.

    python ollama_client.py http://127.0.0.1:PORT ANSWER

The worker's model writes ANSWER, which thinks, says something and calls `add` with {"a": 1, "b": 2}. The sum of a
stream's lines equals the whole answer.
"""

import sys
from datetime import datetime
from importlib.metadata import version

import ollama


def add(a: float, b: float) -> float:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def main(base_url, answer):
    client = ollama.Client(host=base_url)
    [model] = client.list().models
    assert model.model.endswith(":latest") and model.details.format == "gguf", model
    shown = client.show(model.model)
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities), shown
    assert shown.modelinfo["general.architecture"] == model.details.family, shown
    [running] = client.ps().models
    assert running.model == running.name == model.model and running.digest == model.digest, running
    assert running.details == model.details and running.size > 0 and running.size_vram == 0, running
    assert running.context_length == shown.modelinfo[f"{model.details.family}.context_length"], running
    # The command line of Ollama calls what is further away "Forever".
    assert running.expires_at.year > datetime.now().year + 20, running

    request = {"model": model.model, "messages": [{"role": "user", "content": answer}], "tools": [add]}
    whole = client.chat(**request)
    check_whole(whole)
    check_stream(client, request, whole)

    result = {"role": "tool", "content": "3", "tool_name": "add"}
    followed = client.chat(**request | {"messages": [*request["messages"], whole.message, result]})
    assert followed.prompt_eval_count > whole.prompt_eval_count, "the call and its result were not taken in"

    completed = client.generate(model=model.model, prompt=answer, think=True, keep_alive="5m")
    assert (completed.thinking, completed.done_reason) == ("Two numbers.", "stop"), completed
    assert completed.response.startswith("I look."), completed
    lines = list(client.generate(model=model.model, prompt=answer, stream=True))
    assert "".join(line.response for line in lines) == completed.response
    assert "".join(line.thinking or "" for line in lines) == completed.thinking

    refusals(client, request)
    print(f"ollama {version('ollama')}: a call whole and streamed, its result, a completion, the model, what is loaded, refusals")


def check_whole(whole):
    assert (whole.done, whole.done_reason) == (True, "stop"), whole
    assert whole.message.role == "assistant" and whole.message.thinking == "Two numbers.", whole
    assert whole.message.content == "I look.", whole
    [call] = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", {"a": 1, "b": 2}), call
    assert whole.prompt_eval_count > 0 and whole.eval_count > 0, whole
    spent = whole.prompt_eval_duration + whole.eval_duration
    assert 0 < spent <= whole.total_duration < 60 * 10**9 and whole.load_duration == 0, whole


def check_stream(client, request, whole):
    lines = list(client.chat(**request, stream=True))
    assert len(lines) > 5 and [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line.message.content for line in lines) == whole.message.content
    assert "".join(line.message.thinking or "" for line in lines) == whole.message.thinking
    calls = [call for line in lines for call in line.message.tool_calls or []]
    assert calls == list(whole.message.tool_calls), calls
    last = lines[-1]
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count), last


def refusals(client, request):
    def refused(status, word, call):
        try:
            call()
        except ollama.ResponseError as error:
            assert error.status_code == status and word in error.error, error
        else:
            raise AssertionError(f"{word} was accepted and ignored")

    def chat(**changed):
        return lambda: client.chat(**request | changed)

    image = {"role": "user", "content": "What is it?", "images": ["iVBORw0KGgo="]}
    refused(400, "messages[0].images", chat(messages=[image]))
    refused(400, "options.num_ctx", chat(options={"num_ctx": 10**9}))
    refused(400, "options.mirostat_tau", chat(options={"mirostat_tau": 5.0}))
    refused(400, "keep_alive", chat(keep_alive=0))
    refused(400, "suffix", lambda: client.generate(request["model"], "a", suffix="b"))
    refused(404, "no embeddings", lambda: client.embed(request["model"], "a"))
    for call in [client.pull, client.push, client.delete]:
        refused(404, "is not supported", lambda call=call: call("other"))


if __name__ == "__main__":
    main(*sys.argv[1:])
