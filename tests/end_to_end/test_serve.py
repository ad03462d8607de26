"""`s2sft serve` with a model that learned the toy task: its answers equal Python's, also for concurrent requests."""

import threading

import pytest

from s2sft_fairseq import Seq2Seq

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from served import serving  # needs the extra

SOURCES = ["a b c d", "D E F G", "h h", "b a", "e f g", "a b c", "c", "d d d d d d"]


@pytest.fixture
def model(trained, toy):
    return Seq2Seq.from_pretrained(trained("pseudo_masked").best, toy.folder, device="cpu")


@pytest.fixture
def served(model):
    model.go = threading.Event()  # the server sets it at its end, for models that wait
    with serving(model, max_wait_ms=200, max_batch=len(SOURCES)) as served:
        yield served


def test_concurrent_requests_get_the_answers_of_single_ones(served, model):
    options = {"beam": 3, "num_return": 2, "length_penalty": 0.5}
    answers = {}
    threads = [
        threading.Thread(target=lambda text=text: answers.update({text: served.generate(text, **options).json}))
        for text in SOURCES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served.metric("s2sft_batch_size_count") < len(SOURCES)
    for text in SOURCES:
        (expected,) = model.hypotheses(text, **options)
        (found,) = answers[text]["results"]
        for one, other in zip(found, expected, strict=True):
            assert (one["text"], one["tokens"]) == (other.text, other.tokens)
            assert one["score"] == pytest.approx(other.score, abs=1e-5)
            assert one["log_probs"] == pytest.approx(other.log_probs, abs=1e-4)


def test_score_and_attention(served, model):
    (text,) = model.generate(["a b c"])
    (found,) = served.ask("/score", {"source": "a b c", "target": text}).json["results"]
    (expected,) = model.score(["a b c"], [text])
    assert found == {"total": expected.total, "tokens": expected.tokens, "log_probs": expected.log_probs}
    attention = served.ask("/attention", {"source": "a b c", "target": text}).json
    assert attention["target_tokens"] == expected.tokens
    assert len(attention["weights"]) == len(expected.tokens)
    assert {len(row) for row in attention["weights"]} == {len(attention["source_tokens"])}


def test_an_option_that_the_model_refuses(served):
    done = served.generate("a", beam=4, no_repeat_ngram=0, max_len=1, num_return=5)
    assert (done.status, "num_return" in done.json["error"]) == (422, True)
    done = served.generate("a", num_return=16)  # more than the model's beam
    assert (done.status, "num_return" in done.json["error"]) == (422, True)
