"""The official OpenAI client drives the server; what it gets is what `LLM` generates."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from outrider.core.request import SamplingParams, StructuredOutputsParams
from outrider.engine.llm import LLM
from tests.loopback import MODEL, Loopback, serving, tiny_llm
from tests.unchecked import unchecked

SAY: Any = [{"role": "user", "content": "a b a b a b"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with unchecked(), serving(tiny_llm(tmp_path_factory.mktemp("serve"))) as running:
        yield running


@pytest.fixture(scope="module")
def plain(server: Loopback) -> LLM:
    """The same weights without a drafter."""
    return server.driver.llm.sibling()


@pytest.fixture(scope="module")
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def http(server: Loopback) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as one:
        yield one


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=SAY, **options)


def joined(chunks: Any) -> dict[int, str]:
    """Texts of a chat stream by choice; checks that every stream begins and ends as it must."""
    texts: dict[int, str] = {}
    ended: set[int] = set()
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in ended, "text after the end"
            if choice.index not in texts:
                assert choice.delta.role == "assistant"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                ended.add(choice.index)
    assert ended == set(texts)
    return texts


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0, "max_tokens": 40}, {"temperature": 0, "max_tokens": 40}),
    "seeded": ({"seed": 7, "max_tokens": 40}, {"seed": 7, "max_tokens": 40}),
    "sampling": (
        {"seed": 1, "max_tokens": 30, "temperature": 0.8, "top_p": 0.9}
        | {"extra_body": {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1}},
        {"seed": 1, "max_tokens": 30, "temperature": 0.8, "top_p": 0.9}
        | {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1},
    ),
    "penalties": (
        {"seed": 2, "max_tokens": 30, "presence_penalty": 0.7, "frequency_penalty": 0.5},
        {"seed": 2, "max_tokens": 30, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    ),
    "bias": (
        {"seed": 3, "max_tokens": 30, "logit_bias": {"7": 5, "9": -100}},
        {"seed": 3, "max_tokens": 30, "logit_bias": {7: 5, 9: -100}},
    ),
    "several": ({"seed": 4, "max_tokens": 20, "n": 3}, {"seed": 4, "max_tokens": 20, "n": 3}),
    "stop strings": (
        {"seed": 5, "max_tokens": 60, "stop": ["a", "e", "\x1a"]},
        {"seed": 5, "max_tokens": 60, "stop": ("a", "e", "\x1a")},
    ),
    "stop tokens": (
        {"seed": 6, "max_tokens": 60, "extra_body": {"stop_token_ids": [4, 5, 6, 7, 8, 9, 10]}},
        {"seed": 6, "max_tokens": 60, "stop_token_ids": {4, 5, 6, 7, 8, 9, 10}},
    ),
    "least": (
        {"seed": 6, "max_completion_tokens": 50, "extra_body": {"min_tokens": 40}},
        {"seed": 6, "max_tokens": 50, "min_tokens": 40},
    ),
    "not speculative": (
        {"seed": 8, "max_tokens": 30, "extra_body": {"speculative": False}},
        {"seed": 8, "max_tokens": 30},
    ),
    "limited drafts": (
        {"seed": 8, "max_tokens": 30, "extra_body": {"speculative": {"max_draft_len": 1}}},
        {"seed": 8, "max_tokens": 30},
    ),
    "regex": (
        {"seed": 3, "max_tokens": 60, "extra_body": {"regex": "(日本|😀)[0-9]{3,5}x"}},
        {"seed": 3, "max_tokens": 60, "structured_outputs": {"regex": "(日本|😀)[0-9]{3,5}x"}},
    ),
    "two bytes": (
        {"seed": 9, "max_tokens": 200, "extra_body": {"allowed_token_ids": "é"}},
        {"seed": 9, "max_tokens": 200, "allowed_token_ids": "é"},
    ),
    "three bytes": (
        {"seed": 9, "max_tokens": 300, "extra_body": {"allowed_token_ids": "語"}},
        {"seed": 9, "max_tokens": 300, "allowed_token_ids": "語"},
    ),
    "four bytes": (
        {"seed": 11, "max_tokens": 400, "extra_body": {"allowed_token_ids": "😀"}},
        {"seed": 11, "max_tokens": 400, "allowed_token_ids": "😀"},
    ),
}


def with_ids(options: dict[str, Any], llm: LLM) -> tuple[dict[str, Any], str]:
    """Options with the tokens of the letter that `allowed_token_ids` names, and the letter."""
    inner = options.get("extra_body", options)
    letter = inner.get("allowed_token_ids", "")
    if not letter:
        return options, ""
    ids = {**inner, "allowed_token_ids": llm.tokenizer.encode(letter, add_special_tokens=False)}
    return ({**options, "extra_body": ids} if inner is not options else ids), letter


@pytest.mark.parametrize("name", OPTIONS)
@unchecked()
def test_options_give_what_the_library_gives(client: openai.OpenAI, plain: LLM, name: str) -> None:
    """Catches an option lost or altered on its way, and a stream that is not the whole text."""
    options, letter = with_ids(OPTIONS[name][0], plain)
    own, _ = with_ids(OPTIONS[name][1], plain)
    if "structured_outputs" in own:
        own = {**own, "structured_outputs": StructuredOutputsParams(**own["structured_outputs"])}
    answer = chat(client, **options)
    params = SamplingParams(**own)
    expected = plain.chat(SAY, params).outputs
    assert [choice.message.content for choice in answer.choices] == [one.text for one in expected]
    assert [choice.finish_reason for choice in answer.choices] == [
        one.finish_reason for one in expected
    ]
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in expected)
    assert answer.usage.prompt_tokens == len(plain.chat_prompt(SAY))
    texts = joined(chat(client, stream=True, **options))
    assert texts == {number: one.text for number, one in enumerate(expected)}
    assert letter in expected[0].text


def test_the_stream_ends_with_counts(client: openai.OpenAI) -> None:
    """Catches usage that is absent, counted differently in streams, or sent unasked."""
    whole = chat(client, seed=1, max_tokens=30)
    chunks = list(
        chat(client, seed=1, max_tokens=30, stream=True, stream_options={"include_usage": True})
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 30
    assert chunks[-1].metrics == whole.metrics
    assert whole.metrics["speculative_decoding"]["num_spec_tokens"] > 0
    silent = list(chat(client, seed=1, max_tokens=30, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in silent)


@unchecked()
def test_logprobs_of_a_chat(client: openai.OpenAI, plain: LLM) -> None:
    """Catches entries that are missing, of another token, or differ between stream and whole."""
    options: dict[str, Any] = {"seed": 3, "max_tokens": 25, "logprobs": True, "top_logprobs": 3}
    entries = chat(client, **options).choices[0].logprobs.content
    expected = plain.chat(SAY, SamplingParams(seed=3, max_tokens=25, logprobs=3)).outputs[0]
    assert expected.logprobs is not None
    assert [entry.logprob for entry in entries] == [each.logprob for each in expected.logprobs]
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert bytes(byte for entry in entries for byte in entry.bytes).decode(
        errors="replace"
    ) == plain.tokenizer.decode(expected.token_ids, skip_special_tokens=False)
    streamed = [
        entry
        for chunk in chat(client, stream=True, **options)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == entries


@unchecked()
def test_plain_completions(client: openai.OpenAI, plain: LLM) -> None:
    """Catches prompts or continuations that are mixed up, and a wrong default length."""
    prompts = ["abcabc", "xyxyxy"]
    params = SamplingParams(seed=5, max_tokens=16, n=2, logprobs=2)
    expected = [one for each in plain.generate(prompts, params) for one in each.outputs]
    answer = client.completions.create(model=MODEL, prompt=prompts, seed=5, n=2, logprobs=2)
    assert [choice.text for choice in answer.choices] == [one.text for one in expected]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, one in zip(answer.choices, expected, strict=True):
        assert choice.logprobs is not None
        assert one.logprobs is not None
        assert choice.logprobs.token_logprobs == [each.logprob for each in one.logprobs]
    ids = [plain.tokenizer.encode(prompt) for prompt in prompts]
    again = client.completions.create(model=MODEL, prompt=ids, seed=5, n=2, echo=True)
    assert [choice.text for choice in again.choices] == [
        prompts[number // 2] + one.text for number, one in enumerate(expected)
    ]
    texts = ["", "", "", ""]
    for chunk in client.completions.create(
        model=MODEL, prompt=ids, seed=5, n=2, echo=True, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in again.choices]


def test_token_origins_add_up_to_the_text(client: openai.OpenAI) -> None:
    """Catches characters that belong to no token, and an origin nobody knows."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    options["extra_body"] = {"return_token_origins": True}
    whole = chat(client, **options).choices[0]
    told = []
    for chunk in chat(client, stream=True, **options):
        choice = chunk.choices[0]
        pieces = (choice.model_extra or {}).get("outrider_tokens", [])
        assert "".join(piece["text"] for piece in pieces) == (choice.delta.content or "")
        told += pieces
    assert told == whole.outrider_tokens
    assert {piece["origin"] for piece in told} <= {"accepted", "recovered", "bonus", "target"}
    assert all((piece["origin"] == "accepted") == (piece["source"] is not None) for piece in told)
    assert "accepted" in {piece["origin"] for piece in told}


def test_models_and_tokens(client: openai.OpenAI, http: httpx.Client, plain: LLM) -> None:
    """Catches a model that is listed under another name, and tokens that do not come back."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="there is 'tiny'"):
        client.models.retrieve("other/model")
    for text in ("né 日本 😀", "plain"):
        answer = http.post("/tokenize", json={"prompt": text}).json()
        assert answer["tokens"] == plain.tokenizer.encode(text)
        assert answer["count"] == len(answer["tokens"])
        back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
        assert back == {"prompt": text}
    chat_tokens = http.post("/tokenize", json={"messages": SAY}).json()["tokens"]
    assert chat_tokens == plain.chat_prompt(SAY)


def metric(http: httpx.Client, name: str) -> dict[str, float]:
    """Values of a metric by its labels, the two that are always there left out."""
    lines = http.get("/metrics").text.splitlines()
    found = {}
    for line in lines:
        label, _, value = line.rpartition(" ")
        if label.startswith(f"{name}{{"):
            found[label[len(name) :].replace('engine="0",model_name="tiny"', "")] = float(value)
    return found


def test_sums_over_requests_are_the_counters(client: openai.OpenAI, http: httpx.Client) -> None:
    """Catches a counter that counts drafted for verified, or steps for rounds."""
    names = {
        "num_spec_steps": "vllm:spec_decode_num_drafts_total",
        "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "num_accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    }
    position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    before = {key: metric(http, name).get("{}", 0) for key, name in names.items()}
    at_before = metric(http, position)
    generated = metric(http, "vllm:generation_tokens_total")["{}"]
    answers = [
        chat(client, temperature=0, max_tokens=50, seed=seed, stop=["q"][: seed % 2])
        for seed in range(4)
    ]
    records = [answer.metrics["speculative_decoding"] for answer in answers]
    for key, name in names.items():
        assert metric(http, name)["{}"] - before[key] == sum(each[key] for each in records)
    assert sum(each["num_accepted_draft_tokens"] for each in records) > 0
    gained = {at: value - at_before.get(at, 0) for at, value in metric(http, position).items()}
    for at in range(12):
        expected = sum(sum(each["acceptance_histogram"][at + 1 :]) for each in records)
        assert gained.get(f'{{,position="{at}"}}', 0) == expected
    assert metric(http, "vllm:generation_tokens_total")["{}"] - generated == sum(
        answer.usage.completion_tokens for answer in answers
    )
    for record in records:
        by_length = record["acceptance_histogram_by_draft_length"]
        assert sum(map(sum, by_length.values())) == record["num_spec_steps"]


def test_every_metric_is_readable(http: httpx.Client) -> None:
    """Catches text that Prometheus cannot read, and a name that dashboards look for in vain."""
    from prometheus_client.parser import text_string_to_metric_families

    text = http.get("/metrics").text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_success",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "outrider:verified_rows",
        "outrider:verify_length",
        "outrider:length_policy",
        "outrider:calibration_drift",
        "outrider:skipped_drafts",
    } <= names


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


FORMS: dict[str, tuple[dict[str, Any], StructuredOutputsParams]] = {
    "json_object": (
        {"response_format": {"type": "json_object"}},
        StructuredOutputsParams(json_object=True),
    ),
    "json_schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
            }
        },
        StructuredOutputsParams(json=SCHEMA),
    ),
    "choice": (
        {"extra_body": {"choice": ["yes", "no"]}},
        StructuredOutputsParams(choice=("yes", "no")),
    ),
    "grammar": (
        {"extra_body": {"grammar": 'start: "a" | "b" start'}},
        StructuredOutputsParams(grammar='start: "a" | "b" start'),
    ),
    "structured_outputs": (
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        StructuredOutputsParams(json=SCHEMA),
    ),
}


@pytest.mark.parametrize("name", FORMS)
@unchecked()
def test_the_form_is_that_of_the_library(client: openai.OpenAI, plain: LLM, name: str) -> None:
    """Catches a form that is lost or named wrongly on its way to the engine."""
    options, form = FORMS[name]
    params = SamplingParams(seed=2, max_tokens=120, structured_outputs=form)
    expected = plain.chat(SAY, params).outputs[0]
    answer = chat(client, seed=2, max_tokens=120, **options).choices[0]
    assert (answer.message.content, answer.finish_reason) == (expected.text, expected.finish_reason)
    assert joined(chat(client, seed=2, max_tokens=120, stream=True, **options)) == {
        0: expected.text
    }


BAD_BODIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown field": ({"max_tokns": 3}, 422, "max_tokns"),
    "nested unknown field": ({"speculative": {"lenght": 3}}, 422, "lenght"),
    "text for a number": ({"max_tokens": "5"}, 422, "max_tokens"),
    "number for text": ({"stop": 5}, 422, "stop"),
    "negative": ({"max_tokens": -1}, 422, "max_tokens"),
    "huge": ({"max_tokens": 10**30}, 422, "max_tokens"),
    "too many tokens": ({"max_tokens": 60000, "n": 2}, 400, "n × max_tokens"),
    "hot": ({"temperature": -1.0}, 400, "temperature"),
    "top_p": ({"top_p": 1.5}, 400, "top_p"),
    "too many stops": ({"stop": ["a"] * 17}, 422, "stop"),
    "empty stop": ({"stop": ""}, 422, "stop"),
    "unknown model": ({"model": "gpt"}, 404, "gpt"),
    "n": ({"n": 1000}, 422, "n"),
    "more than a queue": ({"n": 128, "max_tokens": 1}, 400, "lower n"),
    "bias of no token": ({"logit_bias": {"99999": 1}}, 400, "99999"),
    "bias for a word": ({"logit_bias": {"word": 1}}, 422, "logit_bias"),
    "no messages": ({"messages": []}, 422, "messages"),
    "no text": ({"messages": [{"role": "user", "content": 5}]}, 422, "content"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        422,
        "content",
    ),
    "lone surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, 422, "content"),
    "too long": ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "512"),
    "draft length": ({"speculative": {"max_draft_len": -1}}, 422, "max_draft_len"),
    "rule": ({"speculative": {"verify_rule": "hope"}}, 422, "verify_rule"),
    "logprobs": ({"top_logprobs": 3}, 400, "logprobs"),
    "many logprobs": ({"logprobs": True, "top_logprobs": 300}, 422, "top_logprobs"),
    "counts without a stream": ({"stream_options": {"include_usage": True}}, 400, "stream"),
    "two forms": ({"regex": "a", "grammar": 'start: "a"'}, 400, "exclude each other"),
    "no schema": ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    "bad schema": ({"structured_outputs": {"json": {"type": "nonsense"}}}, 400, "nonsense"),
    "bad regex": ({"regex": "("}, 400, "structured_outputs"),
    "bad grammar": ({"grammar": "start: nothing"}, 400, "structured_outputs"),
    "unknown form": ({"response_format": {"type": "xml"}}, 422, "response_format"),
    "template": ({"chat_template_kwargs": {"messages": []}}, 400, "messages"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_requests_are_refused_by_name(http: httpx.Client, name: str) -> None:
    """Catches a bad value that is served, ignored, or answered with something no client reads."""
    changes, status, word = BAD_BODIES[name]
    body = {"model": MODEL, "messages": SAY, "max_tokens": 4} | changes
    answer = http.post(
        "/v1/chat/completions",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert word in f"{error['message']} {error['param']}"


BAD_BYTES = {
    "empty": b"",
    "cut": b'{"messages": [',
    "no object": b"[1, 2]",
    "no text": b"\xff\xfe\x00",
    "bad utf-8 inside": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "endless number": b'{"messages": [], "seed": ' + b"9" * 10_000 + b"}",
    "not a number": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
}


@pytest.mark.parametrize("name", BAD_BYTES)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_bytes_that_are_no_request(http: httpx.Client, name: str, kind: str) -> None:
    """Catches a body that breaks the server before anything checks it."""
    headers = {"content-type": kind} if kind else {}
    url = "/v1/chat/completions"
    answer = http.post(url, content=BAD_BYTES[name], headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    """Catches an error in another shape than clients read."""
    missing = http.get("/v2/chat")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert http.get("/v1/completions").status_code == 405
    assert http.get("/health").json() == {"status": "ok"}
    assert "openapi.json" in http.get("/").text
