"""Requests to the model, and the answers."""

import json
import random
import threading

import exported
import pytest

import s2sft_fairseq

batching = pytest.importorskip("s2sft_fairseq.serve.batching")


def test_generate(serve):
    served = serve()
    done = served.generate("abc", num_return=2, beam=4, length_penalty=0.5)
    hypothesis = {"text": "cba", "score": -0.5, "tokens": ["c", "b", "a"], "log_probs": [-0.1] * 3}
    assert (done.status, done.json) == (200, {"results": [[hypothesis, hypothesis]]})
    assert served.model.batches == [(["abc"], {"beam": 4, "num_return": 2, "length_penalty": 0.5})]


def test_a_list_of_texts_and_fields(serve):
    served = serve()
    done = served.generate(["ab", {"a": "b", "c": "d"}])
    assert [best[0]["text"] for best in done.json["results"]] == ["ba", str({"a": "b", "c": "d"})[::-1]]
    assert served.model.batches == [(["ab", {"a": "b", "c": "d"}], {})]


def test_score(shared):
    one = {"total": -3.0, "tokens": ["b", "c", "d"], "log_probs": [-1.0] * 3}
    assert shared.ask("/score", {"source": "a", "target": "bcd"}).json == {"results": [one]}
    two = shared.ask("/score", {"source": ["a", "b"], "target": ["x", "xy"]}).json["results"]
    assert [each["total"] for each in two] == [-1.0, -2.0]


def test_attention(shared):
    done = shared.ask("/attention", {"source": "abcd", "target": "xy"})
    assert done.json == {
        "source_tokens": list("abcd"),
        "target_tokens": list("xy"),
        "weights": [[0.25] * 4, [0.25] * 4],
    }


def test_concurrent_requests_share_a_batch(serve):
    served = serve(max_batch=8)
    served.model.go.clear()
    answers = {}
    texts = [f"text {number}" for number in range(6)]

    def ask(text, **options):
        answers[text] = served.generate(text, **options).json["results"][0][0]["text"]

    threads = [threading.Thread(target=ask, args=["first"])]
    threads[0].start()
    served.wait_until(lambda: served.model.batches)
    for text in texts:
        threads.append(threading.Thread(target=ask, args=[text]))
    threads.append(threading.Thread(target=ask, args=["other"], kwargs={"beam": 2}))
    for thread in threads[1:]:
        thread.start()
    served.wait_until(lambda: served.metric("s2sft_queue_length") == 7)
    served.model.go.set()
    for thread in threads:
        thread.join()
    assert answers == {text: text[::-1] for text in ["first", "other", *texts]}
    sizes = {len(batch): options for batch, options in served.model.batches[1:]}
    assert sizes == {6: {}, 1: {"beam": 2}}
    assert served.metric('s2sft_batch_size_bucket{le="4"}') == 2
    assert served.metric("s2sft_batch_size_count") == 3


def test_a_full_queue(serve):
    served = serve(max_batch=2, max_queue=2)
    served.model.go.clear()
    threads = [threading.Thread(target=served.generate, args=[source]) for source in ("a", ["b", "c"])]
    for thread, condition in zip(
        threads, (lambda: served.model.batches, lambda: served.metric("s2sft_queue_length") == 2), strict=True
    ):
        thread.start()
        served.wait_until(condition)
    done = served.generate("d")
    assert (done.status, done.headers["Retry-After"]) == (429, "1")
    assert "2 of at most 2" in done.json["error"]
    served.model.go.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/generate", {"source": "a" * 21}, 413, "source: at most 20"),
        ("/generate", {"source": {"a": "a" * 11, "b": "b" * 10}}, 413, "source: at most 20"),
        ("/score", {"source": "a", "target": "b" * 21}, 413, "target: at most 20"),
        ("/attention", {"source": "a", "target": "b" * 21}, 413, "target: at most 20"),
        ("/generate", {"source": ["a"] * 4}, 422, "1 to 3 sources"),
        ("/generate", {"source": []}, 422, "1 to 3 sources"),
        ("/generate", {"source": {}}, 422, "fields"),
        ("/generate", {"source": 5}, 422, "source: must be a text"),
        ("/generate", {"source": ["a", None]}, 422, "source: must be a text"),
        ("/generate", {}, 422, "source: Field required"),
        ("/generate", {"source": "a", "beam": 5, "max_len": 11}, 422, "beam must be at most 4, but is 5; max_len must"),
        ("/generate", {"source": "a", "beam": 2, "num_return": 3}, 422, "num_return must be at most 2"),
        ("/generate", {"source": "a", "beam": 0, "max_len": -1}, 422, "max_len: "),
        ("/generate", {"source": "a", "beam": "2"}, 422, "beam: "),
        ("/generate", {"source": "a", "beam": True}, 422, "beam: "),
        ("/generate", {"source": "a", "path": "/etc/passwd"}, 422, "path: "),
        ("/generate", {"source": "a", **{f"x{number}": 1 for number in range(20)}}, 422, "and 15 more"),
        ("/generate", {"source": "a", "length_penalty": float("nan")}, 422, "length_penalty: "),
        ("/generate", {"source": "a", "length_penalty": 1e400}, 422, "length_penalty: "),
        ("/generate", ["a"], 422, "JSON object"),
        ("/score", {"source": ["a", "b"], "target": "x"}, 422, "target for each of 2"),
        ("/attention", {"source": ["a"], "target": "x"}, 422, "source: must be a text"),
        ("/generate", {"source": "wrong"}, 422, "the source is wrong"),
        ("/nothing", {"source": "a"}, 404, "Not Found"),
    ],
)
def test_refused(shared, path, body, status, reason):
    done = shared.ask(path, body)
    assert done.status == status
    assert list(done.json) == ["error"]
    assert reason in done.json["error"]


@pytest.mark.parametrize("name", ["beam", "num_return", "max_len", "length_penalty", "no_repeat_ngram"])
def test_numbers_without_sense(shared, name):
    for value in (float("nan"), float("inf"), float("-inf"), -11, 10**30, 1e300, "2", [], {}, True):
        done = shared.ask("/generate", {"source": "a", name: value})
        assert done.status == 422
        assert done.json["error"].startswith(name)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"null", b"NaN", b"\0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000),
        *(b'{"source": "\\ud800"}', b'{"\\ud800": 1}', b'{"source": {"\\udc00": "a"}}'),
        b'{"source": "a", "beam": ' + b"9" * 4000 + b"}",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_invalid_requests(shared, raw):
    done = shared.ask("/generate", raw=raw)
    assert done.status == 422
    assert done.json["error"] and len(done.text) < 2000


def test_json_of_another_kind_of_content(shared):
    assert shared.ask("/generate", raw=b'{"source": "a"}', headers={"Content-Type": "text/plain"}).status == 422


def test_an_internal_error_only_shows_an_id(serve, caplog):
    served = serve()
    done = served.generate("bug")
    assert done.status == 500
    (word,) = [word for word in done.json["error"].split() if len(word) == 12]
    assert "secret" not in done.text and "Traceback" not in done.text
    assert f"error {word}" in caplog.text and "a secret of /the/server" in caplog.text
    assert served.generate("a").status == 200


def test_health(shared):
    assert shared.ask("/health").json == {
        "status": "ok",
        "model": "fake",
        "version": s2sft_fairseq.__version__,
        "queue_length": 0,
    }


def test_health_if_the_thread_of_the_model_has_ended(serve, monkeypatch):
    served = serve()
    assert served.ask("/health").status == 200
    monkeypatch.setattr(batching.Batcher, "is_alive", lambda self: False)
    for done in (served.ask("/health"), served.generate("a")):
        assert (done.status, list(done.json)) == (503, ["error"])


def test_defaults_are_those_of_the_model(shared):
    assert shared.ask("/defaults").json == {
        "beam": 3,
        "num_return": 2,
        "max_len": 7,
        "length_penalty": 0.5,
        "no_repeat_ngram": 0,
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        *(("GET", "/generate/", 404, None), ("POST", "/generate/", 404, None), ("GET", "/health/", 404, None)),
        *(("GET", "/generate", 405, "POST"), ("DELETE", "/generate", 405, "POST"), ("OPTIONS", "/score", 405, "POST")),
        *(("POST", "/health", 405, "GET"), ("PUT", "/", 405, "GET"), ("MADEUP", "/attention", 405, "POST")),
        *(("GET", "//generate", 404, None), ("OPTIONS", "*", 404, None), ("GET", "/%00", 404, None)),
    ],
)
def test_wrong_paths_and_methods(shared, method, path, status, allowed):
    done = shared.ask(path, method=method)
    assert (done.status, list(done.json), done.headers["Allow"]) == (status, ["error"], allowed)
    assert "Location" not in done.headers
    assert allowed is None or f"{path} takes {allowed}, not {method}" in done.json["error"]


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/health", 200), ("/generate", 405), ("/nothing", 404)])
def test_head_has_the_answer_of_get_without_its_body(shared, path, status):
    done, whole = shared.ask(path, method="HEAD"), shared.ask(path)
    assert (done.status, whole.status, done.text) == (status, status, "")
    assert done.headers["Content-Type"] == whole.headers["Content-Type"]


def test_options_in_the_address_are_not_ignored(shared):
    done = shared.ask("/generate?beam=2", {"source": "a"})
    assert done.status == 422 and "body" in done.json["error"]


def test_the_description_needs_nothing_from_elsewhere(shared):
    found = shared.ask("/openapi.json").json
    assert set(found["paths"]) == {"/generate", "/score", "/attention", "/health", "/metrics"}
    assert {"413", "422", "429", "503", "504"} <= set(found["paths"]["/generate"]["post"]["responses"])
    assert shared.ask("/docs").status == shared.ask("/redoc").status == 404


@pytest.mark.parametrize(
    "path", ["/../setup.cfg", "/%2e%2e/setup.cfg", "/static/index.html", "/page.js/", "//etc/passwd"]
)
def test_no_path_reaches_the_file_system(shared, path):
    assert shared.ask(path).status == 404


def malformed(draw: random.Random) -> bytes:
    """Return a request that is broken in one of several ways; sometimes one that is not."""
    body = {"source": draw.choice(["a", ["b", {"c": "d"}], {"e": "f"}]), "beam": 2}
    kind = draw.randrange(5)
    junk = [None, True, -1, 1e308, "", "\x00", [], {}, [[[]]], {"a": {"b": []}}, "\ud800", 10**30, float("inf")]
    if kind == 0:
        body[draw.choice(["source", "beam", "num_return", "max_len", "length_penalty", "x"])] = draw.choice(junk)
    raw = bytearray(json.dumps(draw.choice(junk) if kind == 1 else body).encode())
    if kind == 2:
        del raw[draw.randrange(len(raw)) :]
    elif kind == 3:
        for _ in range(draw.randint(1, 5)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
    elif kind == 4:
        raw = bytearray(draw.randbytes(draw.randrange(200)))
    return bytes(raw)


def test_malformed_requests_are_answered(serve):
    served = serve(max_body=1000, max_wait_ms=0)
    draw = random.Random(1)
    statuses = set()
    for _ in range(500):
        done = served.ask(draw.choice(["/generate", "/score", "/attention"]), raw=malformed(draw))
        assert done.status in (200, 422), done.text
        assert "Traceback" not in done.text
        statuses.add(done.status)
    assert statuses == {200, 422}
    assert served.ask("/health").status == 200


def test_without_options_the_texts_are_those_of_python(tmp_path):
    """The page sends no options either, and shows those of the folder."""
    search = {"beam": 3, "nbest": 2, "lenpen": 0.3, "max_len_b": 9, "no_repeat_ngram_size": 2}
    exported.write_model_folder(tmp_path / "model", search=search)
    model = s2sft_fairseq.Seq2Seq.from_pretrained(tmp_path / "model", device="cpu")
    model.go = threading.Event()  # the server sets it at its end
    from served import serving  # needs the extra

    with serving(model) as served:
        defaults = served.ask("/defaults").json
        found = served.generate(["w5 w6 w7", "w9"]).json["results"]
    assert defaults == {"beam": 3, "num_return": 2, "max_len": 9, "length_penalty": 0.3, "no_repeat_ngram": 2}
    expected = model.hypotheses(["w5 w6 w7", "w9"])
    assert [[each["text"] for each in best] for best in found] == [[each.text for each in best] for best in expected]
    assert [best[0]["text"] for best in found] == model.generate(["w5 w6 w7", "w9"])
