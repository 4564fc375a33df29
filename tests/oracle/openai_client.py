"""The `openai` package talks to a running worker as to any OpenAI-compatible server.

    python openai_client.py http://127.0.0.1:PORT

A conversation in two turns, streamed; the same request whole; completions; log probabilities; several choices
and prompts; the list of models; and a refusal that arrives as the exception a user of the package expects.
"""

import sys

import openai


def main(base_url):
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="not-asked-for", max_retries=0)
    model = client.models.list().data[0].id
    first_turn = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    request = {"model": model, "temperature": 0, "max_tokens": 24}

    answer, usage, finish = streamed_chat(client, messages=first_turn, **request)
    assert answer.strip(), "the streamed answer is empty"
    assert finish in ("stop", "length"), finish
    assert 0 < usage.completion_tokens <= 24, usage

    whole = client.chat.completions.create(messages=first_turn, **request)
    assert whole.choices[0].message.content == answer, "streamed and whole answers differ"
    assert whole.choices[0].finish_reason == finish
    assert whole.usage.completion_tokens == usage.completion_tokens

    second_turn = [
        *first_turn,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And of Spain?"},
    ]
    followed, later_usage, _ = streamed_chat(client, messages=second_turn, **request)
    assert followed.strip(), "the second answer is empty"
    assert later_usage.prompt_tokens > usage.prompt_tokens, "the history was not taken in"

    completion = client.completions.create(prompt="1, 2, 3, 4,", **request)
    assert completion.choices[0].text, "the completion is empty"

    log_probabilities(client, first_turn, request)
    several_choices(client, first_turn, {**request, "temperature": 0.9})

    try:
        client.chat.completions.create(messages=first_turn, **request, logit_bias={"50256": -101})
    except openai.BadRequestError as error:
        assert "logit_bias.50256" in str(error), error
    else:
        raise AssertionError("a bias that is none was accepted")
    print(f"openai {openai.__version__}: streamed, whole, two turns, completion, log probabilities, choices, refusal")


def vllm_fields(client, messages, request):
    """Token ids and log probabilities of the prompt, as clients of vLLM ask for them."""
    fields = {"return_token_ids": True, "prompt_logprobs": 2}
    chat = client.chat.completions.create(messages=messages, extra_body=fields, **request)
    check_prompt(chat.prompt_token_ids, chat.prompt_logprobs)
    [choice] = chat.choices
    assert len(choice.token_ids) == chat.usage.completion_tokens, chat.usage
    completion = client.completions.create(prompt="1, 2, 3, 4,", extra_body=fields, **request)
    [whole] = completion.choices
    check_prompt(whole.prompt_token_ids, whole.prompt_logprobs)
    assert len(whole.token_ids) == completion.usage.completion_tokens, completion.usage

    ids, fields = [], {"return_token_ids": True}
    stream = client.chat.completions.create(messages=messages, extra_body=fields, stream=True, **request)
    for number, chunk in enumerate(stream):
        if number == 0:
            assert chunk.prompt_token_ids == chat.prompt_token_ids, chunk
        else:
            assert getattr(chunk, "prompt_token_ids", None) is None, chunk
            ids += chunk.choices[0].token_ids
    assert ids == choice.token_ids, (ids, choice.token_ids)
    chunks = client.completions.create(prompt="1, 2, 3, 4,", extra_body=fields, stream=True, **request)
    chunks = [chunk.choices[0] for chunk in chunks]
    assert [chunk.prompt_token_ids for chunk in chunks] == [whole.prompt_token_ids] + [None] * (len(chunks) - 1)
    assert [id for chunk in chunks for id in chunk.token_ids] == whole.token_ids


def check_prompt(ids, logprobs):
    assert len(ids) == len(logprobs) > 1 and logprobs[0] is None, logprobs
    for token, position in zip(ids[1:], logprobs[1:]):
        assert list(position)[0] == str(token) and len(position) in (2, 3), position
        for entry in position.values():
            assert entry["logprob"] <= 0 and entry["rank"] >= 1 and "decoded_token" in entry, entry


def log_probabilities(client, messages, request):
    chat = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=3, **request
    ).choices[0]
    entries = chat.logprobs.content
    told = b"".join(bytes(entry.bytes) for entry in entries)
    assert told.decode() == chat.message.content, "the tokens are not the text"
    for entry in entries:
        # The request is greedy.
        assert entry.logprob == entry.top_logprobs[0].logprob, entry
        assert len(entry.top_logprobs) == 3, entry

    completion = client.completions.create(prompt="1, 2, 3, 4,", logprobs=2, **request).choices[0]
    lists = completion.logprobs
    assert "".join(lists.tokens) == completion.text, lists.tokens
    assert len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs):
        assert top[token] == logprob, (token, top)

    vllm_fields(client, messages, request)

    prompt = "1, 2, 3, 4,"
    echo = client.completions.create(
        prompt=prompt, logprobs=2, echo=True, **{**request, "max_tokens": 1}
    ).choices[0]
    lists = echo.logprobs
    assert echo.text.startswith(prompt), echo.text
    assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None, lists
    assert lists.token_logprobs[-1] == completion.logprobs.token_logprobs[0], lists
    scored = client.completions.create(
        prompt=prompt, logprobs=2, echo=True, **{**request, "max_tokens": 0}
    )
    assert scored.choices[0].text == prompt, scored
    assert scored.choices[0].logprobs.token_logprobs == lists.token_logprobs[:-1], scored
    assert scored.usage.completion_tokens == 0, scored


def several_choices(client, messages, request):
    chat = client.chat.completions.create(messages=messages, n=3, seed=5, **request)
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
        messages=messages, n=3, seed=5, stream=True, **request
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    for index, choice in enumerate(chat.choices):
        alone = client.chat.completions.create(messages=messages, seed=5 + index, **request)
        assert choice.index == index, choice
        assert choice.message.content == alone.choices[0].message.content == streamed[index], choice

    prompts = ["1, 2, 3, 4,", "A, B, C, D,"]
    batch = client.completions.create(prompt=prompts, n=2, seed=5, **request)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3], batch
    for choice in batch.choices:
        prompt, k = divmod(choice.index, 2)
        alone = client.completions.create(prompt=prompts[prompt], seed=5 + k, **request)
        assert choice.text == alone.choices[0].text, choice


def streamed_chat(client, **request):
    pieces, usage, finish = [], None, None
    stream = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **request
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    return "".join(pieces), usage, finish


if __name__ == "__main__":
    main(*sys.argv[1:])
