"""`/tokenize`, `/detokenize` and `/apply-template` against llama.cpp's own server, asked the same over HTTP.

    python texts.py URL MODEL
"""

import json
import socket
import sys
import urllib.request

import strings
import xllamacpp

MESSAGES = [
    [{"role": "user", "content": "Why is the sky blue?"}],
    [
        {"role": "system", "content": "Be brief. \u00e9\n"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": " Hi there. "},
        {"role": "user", "content": [{"type": "text", "text": "Go on"}]},
    ],
]


def ask(url, path, body):
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def serve(model):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 8192
    params.hostnames = ["127.0.0.1"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        params.port = free.getsockname()[1]
    params.warmup = False
    return xllamacpp.Server(params)


def main():
    url, model = sys.argv[1:]
    server = serve(model)
    theirs = server.listening_address
    compared, wrong = 0, []

    def compare(path, body, *keys):
        nonlocal compared
        ours, other = ask(url, path, body), ask(theirs, path, body)
        compared += 1
        for key in keys:
            if ours[key] != other[key]:
                wrong.append(f"{path} {body!r:.200}: {key}: {ours[key]!r:.300} and not {other[key]!r:.300}")
        return other

    for text in strings.plain() + strings.with_specials():
        for special in (False, True):
            body = {"content": text, "add_special": special}
            tokens = compare("/tokenize", body, "tokens")["tokens"]
        compare("/tokenize", {"content": text, "with_pieces": True}, "tokens")
        compare("/detokenize", {"tokens": tokens}, "content")
    for messages in MESSAGES:
        compare("/apply-template", {"messages": messages}, "prompt")
        prompt = ask(theirs, "/apply-template", {"messages": messages})["prompt"]
        expected = ask(theirs, "/tokenize", {"content": prompt, "add_special": True})["tokens"]
        found = ask(url, "/tokenize", {"messages": messages})
        chat = {"messages": messages, "max_tokens": 1}
        used = ask(url, "/v1/chat/completions", chat)["usage"]["prompt_tokens"]
        compared += 1
        if found["tokens"] != expected or found["count"] != used:
            wrong.append(f"/tokenize {messages!r:.200}: {found} and not {expected}, {used}")
    print(f"{compared} answers compared with llama.cpp's server, {len(wrong)} differ")
    for difference in wrong[:20]:
        print(difference)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
