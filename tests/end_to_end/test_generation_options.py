"""The options of generation, by the command lines, on a model that writes four letters in reverse order."""

import math
from itertools import pairwise

import pytest
from command_output import generated, scores


@pytest.fixture
def generate(toy, trained, call_command):
    """Run ``s2sft generate`` with the pseudo-masked model, or with the models in ``path``."""

    def run(*words, subset="test", path=None):
        path = trained("pseudo_masked").best if path is None else path
        return call_command("generate", toy.data, "--path", path, "--cpu", "--gen-subset", subset, *words).stdout

    return run


@pytest.fixture
def interactive(toy, trained, call_command, tmp_path):
    """Run ``s2sft interactive`` on some lines."""

    def run(*lines, words=()):
        (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
        options = ("--path", trained("pseudo_masked").best, "--cpu", "--input", tmp_path / "lines.txt")
        return call_command("interactive", toy.data, *options, "--buffer-size", "20", *words).stdout

    return run


def lines(toy, name):
    return (toy.raw / name).read_text().splitlines()


def token_scores(output):
    """Return the scores of the tokens of the best hypothesis of each example, base 2."""
    return {number: [float(score) for score in texts[0].split()] for number, texts in generated(output, "P").items()}


def test_score_reference_agrees_with_generation(generate):
    scored, searched = generate("--score-reference"), generate("--beam", "4")
    assert generated(scored) == generated(searched)
    for number, of_example in scores(searched).items():
        assert scores(scored)[number] == pytest.approx(of_example, abs=1e-4)


def test_score_reference_of_improbable_references(toy, generate):
    output = generate("--score-reference", subset="test1")
    for number, reference in enumerate(lines(toy, "mixed.tgt")):
        words = reference.split()[:11]  # --max-target-positions 12 includes eos
        assert generated(output)[number] == [" ".join(words)]
        assert len(token_scores(output)[number]) == len(words) + 1
        assert scores(output)[number][0] == pytest.approx(
            sum(token_scores(output)[number]) / (len(words) + 1), abs=1e-3
        )


def test_ensemble_averages_probabilities(generate, trained):
    model = trained("pseudo_masked")
    single = [token_scores(generate("--score-reference", path=path)) for path in (model.best, model.halfway)]
    both = token_scores(generate("--score-reference", path=f"{model.best}:{model.halfway}"))
    assert single[0] != single[1]
    for number, tokens in both.items():
        of_each = zip(single[0][number], single[1][number], strict=True)
        assert tokens == pytest.approx([math.log2((2**a + 2**b) / 2) for a, b in of_each], abs=1e-3)
    output = generate("--beam", "3", path=f"{model.best}:{model.halfway}")
    for number, tokens in token_scores(output).items():
        assert generated(output)[number] == generated(output, "T")[number]
        assert tokens == pytest.approx(both[number], abs=1e-3)


def test_sampling(generate):
    sample = ("--sampling", "--beam", "3", "--nbest", "3", "--temperature", "3")
    first, again, other = (generate(*sample, "--seed", seed) for seed in ("1", "1", "2"))
    assert generated(first) == generated(again)
    assert generated(first) != generated(other)
    assert {len(texts) for texts in generated(first).values()} == {3}
    greedy = generate("--beam", "1")
    assert generated(generate("--sampling", "--sampling-topk", "1", "--beam", "1")) == generated(greedy)
    assert generated(generate("--sampling", "--sampling-topp", "0.01", "--beam", "1")) == generated(greedy)


def test_shards_of_binarized_data(generate, toy, call_command, trained, tmp_path):
    """Each takes every third batch; together they are the whole, and samples are the same."""
    sample = ("--sampling", "--temperature", "3", "--beam", "2", "--nbest", "2", "--batch-size", "2")
    whole, found = generated(generate(*sample)), {}
    for shard in range(3):
        part = generated(generate(*sample, "--num-shards", "3", "--shard-id", shard))
        assert 0 < len(part) < len(whole) and not part.keys() & found.keys()
        found |= part
    assert found == whole
    assert generated(generate("--beam", "1", "--num-shards", "1000", "--shard-id", "999")) == {}

    words = ("generate", toy.data, "--path", trained("pseudo_masked").best, "--cpu", "--beam", "1", "--num-shards", "2")
    for shard in range(2):
        call_command(*words, "--shard-id", shard, "--results-path", "results")
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names >= {"generate-test-0-of-2.txt", "generate-test-1-of-2.txt"}

    failed = call_command(*words, "--shard-id", "2", status=2)
    assert "--shard-id must be at least 0 and below --num-shards (2), but is 2" in failed.stderr
    for command in (("interactive", toy.data), ("validate", toy.data, "--valid-subset", "test")):
        failed = call_command(*command, *words[2:], status=2)
        assert "--num-shards" in failed.stderr


def test_prefix_size(toy, generate):
    output = generate("--prefix-size", "2", subset="test1")
    sources, references = lines(toy, "mixed.src"), lines(toy, "mixed.tgt")
    for number, (source, reference) in enumerate(zip(sources, references, strict=True)):
        (hypothesis,) = generated(output)[number]
        if not source.strip():
            assert hypothesis == ""  # an empty source has an empty hypothesis
        elif len(reference.split()) < 2:
            assert hypothesis == reference  # the end symbol is part of the prefix
        else:
            assert hypothesis.split()[:2] == reference.split()[:2]


def test_no_repeat_ngram_size(interactive):
    repeating = ("a a b b", "c d c d")
    plain = generated(interactive(*repeating))
    assert plain == {0: ["b b a a"], 1: ["d c d c"]}
    letters = generated(interactive(*repeating, words=("--no-repeat-ngram-size", "1")))
    for (hypothesis,) in letters.values():
        assert len(set(hypothesis.split())) == len(hypothesis.split())
    pairs = generated(interactive(*repeating, words=("--no-repeat-ngram-size", "2")))
    assert pairs[0] == ["b b a a"]
    assert pairs[1] != ["d c d c"]
    ignored = ("--no-repeat-ngram-size", "1", "--no-repeat-ngram-ignore", "a|b|c|d")
    assert generated(interactive(*repeating, words=ignored)) == plain


def test_lengths(generate):
    for texts in generated(generate("--max-len-b", "2")).values():
        assert len(texts[0].split()) <= 2
    for texts in generated(generate("--min-len", "6")).values():
        assert len(texts[0].split()) >= 6


def test_length_penalties_divide_the_same_sum(generate):
    plain = scores(generate("--unnormalized"))
    by_length = scores(generate("--lenpen", "0.5"))
    as_in_s2s_ft = scores(generate("--length-penalty", "gnmt", "--lenpen", "0.5"))
    for number, (total,) in plain.items():  # four letters and eos
        assert by_length[number][0] == pytest.approx(total / 5**0.5, rel=1e-3)
        assert as_in_s2s_ft[number][0] == pytest.approx(total / ((5 + 5) / 6) ** 0.5, rel=1e-3)


def test_generate_and_interactive_agree_on_all_kinds_of_lines(toy, generate, interactive):
    search = ("--beam", "4", "--nbest", "4")
    by_generate = generate(*search, subset="test1")
    by_interactive = interactive(*lines(toy, "mixed.src"), words=search)
    assert list(generated(by_interactive)) == list(range(13))
    assert sorted(generated(by_generate)) == list(range(13))
    for number, source in enumerate(lines(toy, "mixed.src")):
        of_example = scores(by_generate)[number]
        assert scores(by_interactive)[number] == pytest.approx(of_example, abs=1e-4)
        distinct = all(better - worse > 1e-3 for better, worse in pairwise(of_example))
        if distinct:  # hypotheses with equal scores can come in any order
            assert generated(by_interactive)[number] == generated(by_generate)[number]
        if not source.strip():
            assert set(generated(by_generate)[number]) == {""}


def test_special_symbols_are_never_generated(generate):
    almost_uniform = ("--sampling", "--temperature", "50", "--beam", "10", "--nbest", "10", "--min-len", "8")
    output = generate(*almost_uniform, subset="test1")
    said = {word for texts in generated(output).values() for text in texts for word in text.split()}
    assert len(said) == 54  # of 59
    assert not said & {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


def test_results_path(generate, tmp_path):
    printed = generate("--beam", "2")
    shown = generate("--beam", "2", "--results-path", tmp_path / "results")
    written = (tmp_path / "results" / "generate-test.txt").read_text()
    assert generated(shown) == {}
    for kind in "STHDP":
        assert generated(written, kind) == generated(printed, kind)
    assert "BLEU4 = 100.00" in written
