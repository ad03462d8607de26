"""`Seq2Seq` on models that learned the toy task: equal to the command lines and to the naive ways."""

import json
import logging
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from dense_reference import dense_states, visibility_matrix
from examples import run_examples

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.finetuning import context_section
from s2sft_fairseq.objectives.ragged import Ragged

SOURCES = ["a b c d", "D E F G", "", "h h", "zebra . d", "b " * 40, "   ", "e, f", "a b c", "c"]


@pytest.fixture(scope="module", params=["causal", "pseudo_masked", "infilling"])
def method(request):
    return request.param


@pytest.fixture
def model(trained, toy, method):
    return Seq2Seq.from_pretrained(trained(method).best, toy.folder, device="cpu")


def of_command(call_command, tmp_path, best, folder, *words, lines=SOURCES):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    files = ("--path", best, "--tokenizer-dir", folder, "--input", "in.txt", "--output", "out.jsonl", "--overwrite")
    call_command("generate", *files, "--cpu", *words)
    return [json.loads(line)["hypotheses"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def assert_same(found, expected):
    assert [[each.text for each in best] for best in found] == [[each["text"] for each in best] for best in expected]
    assert [[each.tokens for each in best] for best in found] == [
        [each["tokens"] for each in best] for best in expected
    ]
    for best, others in zip(found, expected, strict=True):
        for one, other in zip(best, others, strict=True):
            assert one.score == pytest.approx(other["score"], abs=1e-6)
            assert one.log_probs == pytest.approx(other["positional_scores"], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("--beam", 3, "--nbest", 3, "--lenpen", 0.5), {"beam": 3, "num_return": 3, "length_penalty": 0.5}),
        (
            (
                "--length-penalty",
                "gnmt",
                "--max-len-b",
                3,
                "--min-len",
                2,
                "--no-repeat-ngram-size",
                1,
                "--batch-size",
                2,
            ),
            {"length_penalty_form": "gnmt", "max_len": 3, "min_len": 2, "no_repeat_ngram": 1, "batch_size": 2},
        ),
        (("--beam", 1, "--draft-source", 2), {"beam": 1, "draft_source": 2}),
        (
            ("--beam", 4, "--count-ended", "--keep-unfinished"),
            {"beam": 4, "count_ended": True, "keep_unfinished": True},
        ),
        (("--beam", 4, "--rank-each-step"), {"beam": 4, "rank_each_step": True}),
        (
            ("--sampling", "--beam", 4, "--nbest", 2, "--sampling-topp", 0.9, "--temperature", 2, "--seed", 7),
            {"sampling": True, "beam": 4, "num_return": 2, "top_p": 0.9, "temperature": 2.0, "seed": 7},
        ),
    ],
)
def test_equals_the_command(model, trained, toy, method, call_command, tmp_path, words, options):
    expected = of_command(call_command, tmp_path, trained(method).best, toy.folder, *words)
    before = torch.get_rng_state()
    found = model.hypotheses(SOURCES, **options)
    assert_same(found, expected)
    assert torch.equal(torch.get_rng_state(), before)
    texts = model.generate(SOURCES, **options)
    many = options.get("num_return", 1) > 1
    assert texts == [[each.text for each in best] if many else best[0].text for best in found]


def test_examples(trained, toy):
    """The examples of the docstring."""
    model = Seq2Seq.from_pretrained(trained("causal").best, toy.folder, device="cpu")
    run_examples(Seq2Seq, model=model)


def test_fields(model, trained, toy, method, call_command, tmp_path):
    """A list of fields gives the same as JSON lines with --source; a dict needs the names of a model folder."""
    (tmp_path / "in.jsonl").write_text('{"one": "a b", "two": "c d"}\n{"one": "e", "two": ""}\n')
    files = (
        "--path",
        trained(method).best,
        "--tokenizer-dir",
        toy.folder,
        "--input",
        "in.jsonl",
        "--output",
        "out.txt",
    )
    call_command("generate", *files, "--source", "one", "two", "--cpu")
    expected = (tmp_path / "out.txt").read_text().splitlines()
    dicts = [{"one": "a b", "two": "c d"}, {"one": "e", "two": ""}]
    assert model.generate([list(fields.values()) for fields in dicts]) == expected
    with pytest.raises(UserError, match=r"sources\[0\] is an object \(one, two\), but the model has no names"):
        model.generate(dicts)

    pytest.importorskip("safetensors")
    export = ("export", trained(method).best, "--tokenizer-dir", toy.folder, "--to", "model")
    call_command(*export, "--source", "one", "two")
    named = Seq2Seq.from_pretrained(tmp_path / "model", device="cpu", dtype="float32")
    assert named.generate(dicts) == named.generate([dict(reversed(each.items())) for each in dicts]) == expected
    assert named.generate(tuple(dicts[0].values())) == named.generate("a b [SEP] c d") == expected[0]
    for wrong, words in (
        ({"one": "a"}, "lacks two"),
        ({"one": "a", "two": "b", "three": "c"}, "has three"),
        ({"one": "a", "to": "b"}, "lacks two and has to"),
        (("a", "b", "c"), "but has 3"),
        ("a", "but has 1"),
    ):
        with pytest.raises(UserError, match=f"sources must have the .*fields one, two, .*{words}"):
            named.generate(wrong)

    folder = ("generate", "--path", "model", "--input", "in.jsonl", "--cpu")
    call_command(*folder, "--output", "named.txt")
    assert (tmp_path / "named.txt").read_text().splitlines() == expected
    (tmp_path / "in.json").write_text((tmp_path / "in.jsonl").read_text())
    call_command(*folder[:3], "--input", "in.json", "--output", "out.json", "--cpu")
    written = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    assert [each["hypotheses"][0]["text"] for each in written] == expected
    failed = call_command(*folder, "--output", "no.txt", "--source", "two", "one", status=2)
    assert "--source must name the 2 fields of the model in their order (one two), but is two one" in failed.stderr
    (tmp_path / "lines.txt").write_text("a b [SEP] c d\n\na\n")
    failed = call_command(*folder[:3], "--input", "lines.txt", "--output", "no.txt", "--cpu", status=2)
    assert "lines.txt: 1 line(s) have not the 2 fields of the model (one, two)" in failed.stderr
    assert "line 3" in failed.stderr


def test_a_model_folder(trained, toy, method, call_command, tmp_path):
    """It needs no tokenizer, and its search options are the defaults."""
    pytest.importorskip("safetensors")
    call_command("export", trained(method).best, "--tokenizer-dir", toy.folder, "--to", "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["search"] = {"beam": 2, "nbest": 2, "lenpen": 0.3}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    write_checksums(tmp_path / "model")
    model = Seq2Seq.from_pretrained(tmp_path / "model", device="cpu", dtype="float32")
    expected = of_command(
        *(call_command, tmp_path, trained(method).best, toy.folder, "--beam", 2, "--nbest", 2, "--lenpen", 0.3)
    )
    assert_same(model.hypotheses(SOURCES), expected)
    assert len(model.hypotheses("a b", num_return=1)[0]) == 1
    config["search"] = {"chant": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    write_checksums(tmp_path / "model")
    with pytest.raises(UserError, match=r"search\.chant is no option of a search"):
        Seq2Seq.from_pretrained(tmp_path / "model", device="cpu").generate("a")


@pytest.mark.parametrize("options", [{}, {"sampling": True, "temperature": 3.0, "seed": 5}, {"max_len": 2}])
def test_streams(model, options):
    for source in SOURCES:
        pieces = list(model.stream(source, **options))
        assert "".join(pieces) == model.generate(source, beam=1, **options)
    assert len(list(model.stream("a b c d"))) > 1


def test_scores_are_those_of_the_search(model):
    """Generated text has the log-probabilities of the search; a wrong target is less probable."""
    (found,) = model.hypotheses("a b c d")
    right, wrong = model.score(["a b c d", "a b c d"], [found[0].text, "a a a a"])
    assert right.tokens == found[0].tokens
    assert right.log_probs == pytest.approx(found[0].log_probs, abs=1e-4)
    assert right.total == pytest.approx(sum(found[0].log_probs), abs=1e-4) and wrong.total < right.total
    (one,) = model.score("a b c d", found[0].text)
    assert one.total == pytest.approx(right.total, abs=1e-5)


def test_states(model):
    """They do not depend on other sources; special symbols have states too."""
    (alone,) = model.encode("a b c")
    beside = model.encode(["a b c", "d e f g h"])
    torch.testing.assert_close(beside[0], alone)
    assert beside[1].shape == (len(alone) + 2, alone.size(1)) and alone.dtype == torch.float32


def test_attention(model):
    """Weights sum to at most 1."""
    attention = model.attention("a b c d", "d c b a")
    assert attention.target[:4] == ["d", "c", "b", "a"] and attention.target[4] == "[SEP]"
    assert attention.source[:5] == ["[CLS]", "a", "b", "c", "d"]
    assert attention.weights.shape == (5, len(attention.source))
    assert (attention.weights >= 0).all() and (attention.weights.sum(1) <= 1 + 1e-5).all()
    torch.testing.assert_close(model.attention("a b c d", "d c b a", layer=1).weights, attention.weights)
    assert not torch.equal(model.attention("a b c d", "d c b a", layer=0).weights, attention.weights)
    # Later target tokens change nothing.
    shorter = model.attention("a b c d", "d c")
    torch.testing.assert_close(shorter.weights[:2], attention.weights[:2])


def test_states_and_attention_of_the_dense_reference(model):
    """They equal those computed from the rule alone, each query with each key; weights are those of layer 0."""
    encoder, form = model._loaded.models[0], model._loaded.task.form
    index = model._loaded.tokenizer.dictionary.index
    source, target = (np.array([index(letter) for letter in letters]) for letters in ("abcd", "dc"))
    laid_out = Ragged.of([form.source(source)])
    with torch.no_grad():
        alone = dense_states(encoder, (context_section(laid_out, form),))
        torch.testing.assert_close(model.encode("a b c d")[0], alone, atol=1e-5, rtol=1e-4)
        blocks = model._loaded.task.objective.reference(laid_out, Ragged.of([form.target(target)]), form)
        token, position, segment, label = (
            torch.from_numpy(np.concatenate([getattr(block, name) for block in blocks]))
            for name in ("token", "position", "segment", "label")
        )
        x = encoder.embeddings(token, position, segment)
        query, key = encoder.layers[0].attention.qkv(x).view(len(x), 3, 2, -1)[:, :2].permute(1, 2, 0, 3)
        scores = (query @ key.transpose(1, 2) / query.size(-1) ** 0.5).masked_fill(
            ~torch.from_numpy(visibility_matrix(blocks)), float("-inf")
        )
    expected = scores.softmax(-1).mean(0)[label != form.pad][:, : len(source) + form.source_specials]
    found = model.attention("a b c d", "d c", layer=0)
    torch.testing.assert_close(found.weights, expected, atol=1e-6, rtol=1e-5)
    assert found.target == ["d", "c", "[SEP]"]


@pytest.fixture
def with_dropout(trained, toy, method, tmp_path):
    """A checkpoint that was trained with dropout, and the folder of its tokenizer."""
    state = load_checkpoint(trained(method).best)
    state["cfg"]["model"] |= {"dropout": 0.5, "attention_dropout": 0.5}
    torch.save(state, tmp_path / "dropout.pt")
    return tmp_path / "dropout.pt", toy.folder


@pytest.mark.parametrize(
    "call",
    [lambda model: model.encode("a b c d")[0], lambda model: model.attention("a b c d", "d c b a").weights],
    ids=["encode", "attention"],
)
def test_dropout_is_off_from_the_first_call(model, with_dropout, call):
    torch.testing.assert_close(call(Seq2Seq.from_pretrained(*with_dropout, device="cpu")), call(model))


def test_dropout_is_off_in_a_stream(model, with_dropout):
    streamed = Seq2Seq.from_pretrained(*with_dropout, device="cpu")
    found = ["".join(streamed.stream(source)) for source in SOURCES]
    assert found == model.generate(SOURCES, beam=1)


@pytest.mark.filterwarnings("error")
def test_loading_leaves_the_program_as_it_is(trained, toy):
    before = torch.get_rng_state(), sys.excepthook, warnings.filters[:], logging.getLogger().handlers[:]
    Seq2Seq.from_pretrained(trained("causal").best, toy.folder, device="cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (sys.excepthook, warnings.filters, logging.getLogger().handlers) == before[1:]


def test_threads(model):
    """Several threads at once get the results of one alone, also samples."""
    sampled = {"sampling": True, "temperature": 2.0, "beam": 2}
    expected = [model.generate(SOURCES, **options) for options in ({}, sampled)]
    found = {}

    def run(number):
        found[number] = model.generate(SOURCES, **(sampled if number % 2 else {}))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: expected[number % 2] for number in range(6)}


def test_samples_depend_on_the_source_alone(model):
    """Not on the other sources, their order or the size of a batch."""
    sampled = {"sampling": True, "temperature": 3.0, "beam": 3, "num_return": 3, "seed": 3}
    expected = model.generate(SOURCES, **sampled)
    assert model.generate(SOURCES[:1], **sampled) == expected[:1]
    for size in (1, 2, 5):
        assert model.generate(SOURCES, batch_size=size, **sampled) == expected
    numbers = list(range(len(SOURCES)))[::-1]
    assert model.generate(SOURCES[::-1], numbers=numbers, **sampled) == expected[::-1]
    same = model.generate(["a b c d"] * 4, **sampled)
    assert len({tuple(each) for each in same}) > 1


def test_samples_beside_other_models(model, trained, toy, method):
    """Other uses of models in the program do not change samples, and its random state is kept."""
    sampled = {"sampling": True, "temperature": 3.0, "beam": 4, "num_return": 4, "seed": 3}
    expected = model.generate(SOURCES, **sampled)
    before, stopped = torch.get_rng_state(), threading.Event()
    other = Seq2Seq.from_pretrained(trained(method).best, toy.folder, device="cpu")

    def work():
        while not stopped.is_set():
            other.generate(SOURCES[:3])
            list(other.stream("a b c d"))
            Seq2Seq.from_pretrained(trained(method).best, toy.folder, device="cpu")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        found = [model.generate(SOURCES, **sampled) for _ in range(20)]
    finally:
        stopped.set()
        thread.join()
    assert found == [expected] * 20
    assert torch.equal(torch.get_rng_state(), before)


def test_long_texts(model, caplog):
    """Longer sources are cut with a warning; longer targets are refused, because decoding cannot write them."""
    form = model._loaded.task.form
    assert model.generate("a " * 100) == model.generate("a " * (form.max_source - form.source_specials))
    assert f"1 of 1 sources are cut to {form.max_source} positions" in caplog.text
    most = form.max_target - 1
    assert len(model.score("a", "b " * most)[0].tokens) == form.max_target
    for call in (lambda text: model.score("a", text), lambda text: model.attention("a", text)):
        with pytest.raises(UserError, match=f"must have at most {most} tokens.* but have {most + 1}"):
            call("b " * (most + 1))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"beam": 0}, ["beam must be a whole number from 1 to 10000, but is 0"]),
        (
            {"beam": 2.5, "chant": 1},
            ["beam must be a whole number from 1 to 10000, but is 2.5", "chant is no"],
        ),
        ({"beam": True}, ["beam must be a whole number from 1 to 10000, but is True"]),
        ({"length_penalty": "gnmt"}, ["length_penalty must be a number"]),
        ({"length_penalty_form": "x"}, ["length_penalty_form must be one of length, gnmt"]),
        ({"num_return": 3, "beam": 2}, ["num_return must not exceed beam (2), but is 3"]),
        ({"top_k": 5}, ["top_k needs sampling"]),
        ({"temperature": float("nan")}, ["temperature must be a number from 0.001 to 1000, but is nan"]),
        ({"temperature": float("inf")}, ["temperature must be a number from 0.001 to 1000, but is inf"]),
        ({"max_len": 10**30}, ["max_len must be a whole number from 0 to 2147483647, but is "]),
        ({"batch_size": 10**30}, ["batch_size must be a whole number from 1 to 2147483647"]),
        (
            {"beam": 0, "seed": -1, "batch_size": 0, "target_lang": "x"},
            ["beam must", "seed", "batch_size", "target_lang"],
        ),
        ({"temperature": 0.0}, ["temperature must be a number from 0.001 to 1000, but is 0.0"]),
        ({"batch_size": 0}, ["batch_size must be", "0"]),
        ({"batch_size": True}, ["batch_size must be", "True"]),
        ({"seed": -1}, ["seed must be a whole number of at least 0, but is -1"]),
        ({"seed": "x"}, ["seed must be a whole number of at least 0, but is 'x'"]),
        ({"target_lang": "de"}, ["target_lang must be a language of the model (it has none)", "de"]),
        ({"numbers": []}, ["numbers must be a whole number of at least 0 for each of 1 sources, but is []"]),
        ({"numbers": [-1]}, ["numbers must be"]),
        ({"numbers": [0.5]}, ["numbers must be"]),
        ({"numbers": [2**63]}, ["numbers must be"]),
        ({"numbers": 5}, ["numbers must be", "but is 5"]),
        ({"max_passes": 2, "confidence": 0.5}, ["max_passes needs decode_blocks", "confidence needs decode_blocks"]),
        ({"revise": 0.1, "beam": 1}, ["revise needs decode_blocks"]),
    ],
)
def test_wrong_arguments(model, options, named):
    with pytest.raises(UserError) as raised:
        model.generate("a", **options)
    assert all(each in str(raised.value) for each in named), str(raised.value)


def test_numbers_of_numpy(model):
    """A value from an array is the number that it holds."""
    plain = model.generate("a b c", beam=2, length_penalty=0.5, sampling=True, seed=3, batch_size=1)
    options = {"beam": np.int64(2), "length_penalty": np.float64(0.5), "sampling": np.True_, "seed": np.int32(3)}
    assert model.generate("a b c", **options, batch_size=np.int64(1), numbers=np.array([0])) == plain
    with pytest.raises(UserError, match=r"beam must be a whole number .*, but is 2\.0"):
        model.generate("a", beam=np.float32(2))


def test_wrong_sources(model):
    with pytest.raises(UserError, match=r"sources\[1\] must be a text.*7"):
        model.generate(["a", 7])
    for nothing in (None, 7):
        with pytest.raises(UserError, match=rf"sources must be a text.*{nothing}"):
            model.generate(nothing)
        with pytest.raises(UserError, match=rf"source must be a text.*{nothing}"):
            model.stream(nothing)
        with pytest.raises(UserError, match=rf"target must be a text.*{nothing}"):
            model.attention("a", nothing)
        with pytest.raises(UserError, match=rf"targets\[1\] must be a text.*{nothing}"):
            model.score(["a", "b"], ["a", nothing])
    with pytest.raises(UserError, match="half a surrogate pair"):
        model.generate("\ud83d")
    with pytest.raises(UserError, match=r"targets as sources \(1\), but there are 2"):
        model.score(["a"], ["b", "c"])
    with pytest.raises(UserError, match="beam must be 1, but is 3"):
        model.stream("a", beam=3)
    with pytest.raises(UserError, match="num_return must be 1, but is 2"):
        model.stream("a", num_return=2)
    with pytest.raises(UserError, match=r"seed must be a whole number.*'x'"):
        model.stream("a", seed="x")
    for layer in (2, "x"):
        with pytest.raises(UserError, match=f"layer must be from -2 to 1, but is '?{layer}"):
            model.attention("a", "b", layer=layer)


def test_files_that_cannot_be_loaded(trained, toy, tmp_path):
    best = trained("causal").best
    with pytest.raises(UserError) as raised:
        Seq2Seq.from_pretrained(best, device="tpu", dtype="int4", quantize="int3")
    for named in ("tokenizer is needed", "device must be one of", "tpu", "dtype must be one of", "quantize must be"):
        assert named in str(raised.value)
    with pytest.raises(UserError, match="missing does not exist"):
        Seq2Seq.from_pretrained(tmp_path / "missing")
    with pytest.raises(UserError, match=r"path must not contain ':'.* but is a:b"):
        Seq2Seq.from_pretrained("a:b")
    with pytest.raises(UserError, match="path must name a model folder"):
        Seq2Seq.from_pretrained(7)
    with pytest.raises(UserError, match="tokenizer must be the path of a folder, but is 7"):
        Seq2Seq.from_pretrained(best, 7)
    torch.save({"model": {}, "cfg": {"model": {}, "task": {"_name": "unilm_classification"}}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt must be a model of the task unilm_seq2seq.*unilm_classification"):
        Seq2Seq.from_pretrained(tmp_path / "other.pt", toy.folder)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device is cuda"):
            Seq2Seq.from_pretrained(best, toy.folder, device="cuda")
