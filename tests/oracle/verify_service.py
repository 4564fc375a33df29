"""Rows of `verify.py` that ask a worker over HTTP: rendered chats, and answers that a disturbance must not change."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chat_templates
import llama_cpp
import prose
from verify_table import Row

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Says "how warm" it is.',
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        },
    },
}
USER = {"role": "user", "content": "  Wie warm ist es in Köln, 12345 \U0001f321?\n"}
ANSWER = {"role": "assistant", "content": "21 °C."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Köln", "days": 2}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"celsius": 21.0}'}
SYSTEM = {"role": "system", "content": "Be brief."}
TALKS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER, {"role": "user", "content": "Danke"}],
]
TALKS_WITH_TOOLS = [
    [USER],
    [SYSTEM, USER, CALL, RESULT],
    [USER, CALL, RESULT, ANSWER, {"role": "user", "content": "Danke"}],
]

# A large model is loaded from a slow disk.
LOADS_WITHIN = 1800
ENDS_WITHIN = 60
# Events of a stream before it is disturbed.
BEFORE = 3
# Streams that may end before their child is killed.
TRIES = 5


class Worker:
    """A worker on a device, until the block ends. Its log is a file."""

    def __init__(self, job, device):
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._log = folder / "log"
        context = min(job.theirs.context, 4096)
        command = [
            job.programs / "tested-worker-orcd", "--child-binary", job.programs / "tested-worker-orcd-gpu",
            "--model", job.path, "--device", device, "--max-context", context,
            "--host", "127.0.0.1", "--port", 0, "--log-format", "json", "--crash-dir", folder / "crashes",
        ]  # fmt: skip
        if device == "cpu":
            command += ["--threads", job.threads]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.url = "http://" + self.wait("listening", LOADS_WITHIN)["address"]
            self.ready = self.wait("ready", LOADS_WITHIN)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def records(self, event):
        lines = self._log.read_text(errors="replace").splitlines()
        records = [json.loads(line) for line in lines if f'"event":"{event}"' in line]
        return [record for record in records if record["event"] == event]

    def wait(self, event, patience, count=1):
        """The record of that name, or of so many the last one."""
        until = time.monotonic() + patience
        while len(self.records(event)) < count:
            if self._process.poll() is not None or time.monotonic() > until:
                lines = self._log.read_text(errors="replace").splitlines()
                raise RuntimeError(f"the worker logged no {event!r}; its last line: {' '.join(lines[-1:])}")
            time.sleep(0.05)
        return self.records(event)[count - 1]

    def post(self, path, body):
        """Status and JSON of an answer."""
        try:
            with self.open(path, body) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def open(self, path, body):
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=LOADS_WITHIN)

    def health(self):
        with urllib.request.urlopen(self.url + "/health", timeout=ENDS_WITHIN) as answer:
            return json.load(answer)

    def recoveries(self):
        """Requests that went on behind a death."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=ENDS_WITHIN) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("worker_orcd_recoveries_total"))

    def child(self):
        """Process id of the child that serves."""
        return self.health()["child"]["pid"]

    def upgrade(self, child):
        """Asks for an upgrade, and holds the child until the next program begins, so that nothing ends before."""
        before = len(self.records("upgrade"))
        os.kill(child, signal.SIGSTOP)
        self._process.send_signal(signal.SIGUSR2)
        try:
            self.wait("upgrade", ENDS_WITHIN, before + 1)
        finally:
            # A child that is silent for too long is replaced meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def restored(self):
        """Requests that went on behind an upgrade."""
        return sum(record["count"] for record in self.records("requests_restored"))


# --- chats ---


def chats(job, worker):
    """Prompts that the model's template makes, beside those of transformers, and their ids beside llama.cpp's."""
    file = job.theirs
    if not file.template:
        yield Row.not_run("chat", "", "the file has no chat template")
        return
    bodies = []
    for name, talks, tools in [("chat", TALKS, []), ("chat with tools", TALKS_WITH_TOOLS, [WEATHER])]:
        cases = [{"messages": talk} | ({"tools": tools} if tools else {}) for talk in talks]
        made = [made_prompt(worker, body) for body in cases]
        if "unsupported" in made[0]:
            yield Row.not_run(name, "", made[0]["unsupported"])
            continue
        different = []
        for body, mine in zip(cases, made, strict=True):
            expected = expected_prompt(file, body)
            if expected != mine:
                different.append(f"{body}: transformers {expected!r}, ours {mine!r}")
            elif "prompt" in mine:
                bodies.append(body)
        yield Row.of_differences(name, "", f"{len(cases)} conversations, beside transformers", different)
    yield ids_of_chats(job, worker, bodies)


def expected_prompt(file, body):
    case = {
        "template": file.template, "begin": file.begin, "end": file.end,
        "body": json.dumps({"tools": []} | body),
        "settings": {"date_string": time.strftime("%d %b %Y")},
    }  # fmt: skip
    return chat_templates.made_by_transformers(case)


def made_prompt(worker, body):
    status, answer = worker.post("/apply-template", body)
    if status == 200:
        return {"prompt": answer["prompt"]}
    kinds = {mistake["constraint"] for mistake in answer.get("errors", [])}
    return {"unsupported" if "unsupported" in kinds else "refusal": answer["message"]}


def ids_of_chats(job, worker, bodies):
    different = []
    with llama_cpp.Model(job.theirs.path, vocab_only=True) as reference:
        for body in bodies:
            prompt = made_prompt(worker, body)["prompt"]
            expected = reference.tokenize(prompt, whole=True)
            # llama.cpp's server leaves out the second of two first tokens.
            if len(expected) > 1 and expected[0] == expected[1]:
                expected = expected[1:]
            _, found = worker.post("/tokenize", body)
            if found.get("tokens") != expected:
                different.append(f"{prompt!r}\n  ours {found}\n  llama.cpp {expected}")
    return Row.of_differences("ids of chats", "", f"{len(bodies)} prompts", different)


# --- answers ---


def answers(job, worker, device):
    """One answer with its log probabilities: alone, again, beside others, over the death of the child, over an upgrade."""
    context = min(job.theirs.context, 4096)
    tokens = min(96 if job.theirs.is_small else 64, context // 2)
    body = {
        "prompt": prose.text(characters=min(1200, context // 3)), "max_tokens": tokens, "ignore_eos": True,
        "temperature": 0.8, "seed": 20261130, "logprobs": 5, "stream": True,
    }  # fmt: skip
    status, refusal = worker.post("/v1/completions", body | {"stream": False, "max_tokens": 1})
    if status != 200:
        yield Row("answers", device, "over HTTP", json.dumps(refusal, ensure_ascii=False), "", False)
        return
    calm = Stream(worker, body).rest()
    cases = [
        ("again", "the prompt's prefix from the cache", lambda: Stream(worker, body).rest()),
        ("batch", "beside three others", lambda: beside(worker, body)),
        ("kill", "the child killed in its middle", lambda: over_a_death(worker, body)),
        ("upgrade", "the supervisor replaced in its middle", lambda: over_an_upgrade(worker, body)),
    ]
    for name, way, ask in cases:
        compared = f"text and log probabilities of {len(calm['tokens'])} tokens: {way}, and alone"
        found = ask()
        if found is None:
            yield Row.not_run(f"answer: {name}", device, f"{TRIES} streams ended before they were disturbed")
            continue
        same = found == calm
        yield Row(f"answer: {name}", device, compared, "equal" if same else difference(found, calm), "equal", same)


class Stream:
    """A streamed completion; its columns are lists of all tokens."""

    def __init__(self, worker, body):
        self._answer = worker.open("/v1/completions", body)
        self._columns = {"text": "", "tokens": [], "token_logprobs": [], "top_logprobs": []}

    def take(self, events):
        while events and self._take_one():
            events -= 1

    def rest(self):
        with self._answer:
            while self._take_one():
                pass
        return self._columns

    def _take_one(self):
        """Whether there was another event."""
        for line in self._answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return False
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise RuntimeError(f"the stream ended with {event['error']}")
            for choice in event["choices"]:
                self._columns["text"] += choice["text"]
                for name in ("tokens", "token_logprobs", "top_logprobs"):
                    self._columns[name] += (choice["logprobs"] or {}).get(name, [])
            return True
        raise RuntimeError("the stream broke off")


def beside(worker, body):
    cuts = [len(body["prompt"]) * part // 8 for part in (1, 2, 4)]
    others = [body | {"prompt": body["prompt"][cut:], "seed": cut} for cut in cuts]
    with ThreadPoolExecutor(len(others)) as pool:
        answered = [pool.submit(lambda it=it: Stream(worker, it).rest()) for it in others]
        found = Stream(worker, body).rest()
        # A refused one would leave the answer alone.
        for other in answered:
            other.result()
    return found


def over_a_death(worker, body):
    """None if no stream was long enough."""
    for _ in range(TRIES):
        before, child = worker.recoveries(), worker.child()
        stream = Stream(worker, body)
        stream.take(BEFORE)
        os.kill(child, signal.SIGKILL)
        found = stream.rest()
        if worker.recoveries() > before:
            return found
    return None


def over_an_upgrade(worker, body):
    """None if no stream was long enough."""
    for _ in range(TRIES):
        restored, ready, child = worker.restored(), len(worker.records("ready")), worker.child()
        stream = Stream(worker, body)
        stream.take(BEFORE)
        worker.upgrade(child)
        found = stream.rest()
        worker.wait("ready", LOADS_WITHIN, ready + 1)
        if worker.restored() > restored:
            return found
    return None


def difference(found, calm):
    for name, expected in calm.items():
        if found[name] == expected:
            continue
        pairs = zip(found[name], expected, strict=False)
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found[name]), len(expected)))
        return f"{name} differ from {at} on"
    return "equal"
