"""Extractive question answering: from SQuAD's JSON to windows, training, predictions and scores."""

import json
import re

import pytest
from command_output import last_value
from examples import run_examples

from s2sft_fairseq import Reader
from s2sft_fairseq.errors import UserError

MODEL = (
    *("--task", "unilm_question_answering", "--arch", "unilm_tiny", "--random-init", "--encoder-layers", "2"),
    *("--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--max-positions", "32", "--dropout", "0"),
    *("--attention-dropout", "0", "--cpu", "--num-workers", "0", "--no-epoch-checkpoints", "--log-format", "simple"),
    *("--save-interval", "50"),  # an epoch is an update
)
PASSAGE = "A b c d, e f g h a c  e g b d f h."
# Eight questions: their first letter and the answer; two have no answer.
ANSWERS = {"a": "c d", "b": "e", "c": "h a c", "d": "g h", "e": None, "f": "A b", "g": None, "h": "h."}


def squad_file(path):
    asked = []
    for letter, text in ANSWERS.items():
        start = PASSAGE.rindex(text) if text else 0
        answers = [{"text": text, "answer_start": start}] if text else []
        asked.append({"id": letter, "question": f"{letter} {letter}", "answers": answers, "is_impossible": not text})
    data = [{"title": "Letters", "paragraphs": [{"context": PASSAGE, "qas": asked}]}]
    path.write_text(json.dumps({"version": "v2.0", "data": data}))


@pytest.fixture
def preprocessed(tmp_path, letters, call_command):
    """Run ``s2sft prepare squad``."""
    (tmp_path / "raw").mkdir()
    for split in ("train", "dev"):
        squad_file(tmp_path / "raw" / f"{split}-v2.0.json")

    def run(*words, status=0):
        options = ("--raw", tmp_path / "raw", "--output", tmp_path / "corpus", "--tokenizer-dir", letters.folder)
        return call_command("prepare", "squad", *options, "--version", "2.0", *words, status=status)

    return run


@pytest.mark.rounding
@pytest.mark.parametrize("seed", [1, 2])
def test_from_json_to_scores(preprocessed, call_command, letters, until_learned, tmp_path, seed):
    windows = ("--max-positions", 16, "--stride", 4, "--max-query", 2)
    assert preprocessed(*windows).stdout == f"{tmp_path}/corpus: train 24, valid 24\n"
    words = ("--trainpref", "corpus/train.txt", "--validpref", "corpus/valid.txt", "--srcdict", letters.dictionary)
    call_command("preprocess", "--only-source", *words, "--destdir", "data", "--workers", 1)
    data = tmp_path / "data"
    failed = call_command("train", data, *MODEL, "--max-update", 1, status=2)
    assert f"{data}/valid.questions.jsonl: cannot be read: No such file or directory" in failed.stderr
    for split in ("train", "valid"):
        (tmp_path / "corpus" / f"{split}.questions.jsonl").rename(data / f"{split}.questions.jsonl")
    short = ("--max-positions", 15, "--max-update", 1)
    failed = call_command("train", data, *MODEL, *short, status=2)
    assert (
        "valid has windows of 16 positions, but --max-positions of the model is 15: give s2sft prepare squad "
        "--max-positions 15" in failed.stderr
    )

    def train(updates):
        words = ("--seed", seed, "--validate-interval", 50, "--max-update", updates, "--save-dir", "tuned")
        return call_command("train", data, *MODEL, "--lr", 0.005, *words).stdout

    def learned(log):  # for every window, with answers far more likely than all others
        values = [last_value(log, name, "valid on 'valid' subset") for name in ("accuracy", "loss")]
        return values[0] == 100 and values[1] < 0.1

    until_learned(train, learned, 200)
    predict = ("predict", data, "--path", "tuned/checkpoint_last.pt", "--cpu")
    call_command("export", "tuned/checkpoint_last.pt", "--tokenizer-dir", letters.folder, "--to", "model")
    call_command("predict", data, "--path", "model", "--cpu", "--output", "folder.json")
    words = ("--tokenizer-dir", letters.folder, "--to", "hugging_face")
    told = call_command("export", "--format", "hugging_face", "tuned/checkpoint_last.pt", *words).stdout
    assert "wrote hugging_face: BertForQuestionAnswering" in told
    told = call_command(*predict, "--output", "a.json", "--null-odds", "odds.json", "--n-best-file", "best.json").stdout
    assert "a.json: 8 answers, 2 of them empty\n" in told
    assert re.search(r"^odds\.json: .*above 0", told, re.MULTILINE)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found == {letter: text or "" for letter, text in ANSWERS.items()}
    always = json.loads((tmp_path / "folder.json").read_text())  # without the odds, every question gets an answer
    assert {letter: always[letter] for letter, text in ANSWERS.items() if text} == {
        k: v for k, v in ANSWERS.items() if v
    }
    reader = Reader.from_pretrained("model")
    windows = {"max_positions": 16, "stride": 4, "max_query": 2}
    for letter, text in ANSWERS.items():
        answer = reader(f"{letter} {letter}", PASSAGE, null_threshold=0, **windows)
        assert answer.text == (text or "") == PASSAGE[answer.start : answer.end]
    assert reader("e e", PASSAGE, **windows).text == always["e"]
    assert reader("a", "", **windows).text == ""
    run_examples(Reader, reader=reader)
    with pytest.raises(UserError) as raised:
        reader(7, "\ud83d", max_answer=0, stride="x", null_threshold=None)
    for named in ("question must be text", "passage must be", "max_answer must be", "stride must be", "null_threshold"):
        assert named in str(raised.value)
    with pytest.raises(UserError, match="max_positions must be more than"):
        reader("a", PASSAGE, max_positions=5, max_query=2)
    odds = json.loads((tmp_path / "odds.json").read_text())
    assert {letter: value > 0 for letter, value in odds.items()} == {k: not text for k, text in ANSWERS.items()}
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["a"][0]["text"] == "c d"
    assert [len(spans) for spans in best.values()] == [20] * 8
    told = call_command(*predict, "--output", "always.json").stdout
    assert "always.json: 8 answers, 0 of them empty\n" in told

    scored = ("evaluate", "--task", "squad_v2", "--ref", "raw/dev-v2.0.json", "--hyp")
    assert call_command(*scored, "a.json").stdout.count("100.00") == 6
    searched = call_command(*scored, "always.json", "--null-odds", "odds.json", "--json", "scores.json").stdout
    assert "threshold of best F1" in searched
    scores = json.loads((tmp_path / "scores.json").read_text())["systems"]["always.json"]["scores"]
    scores = {score["name"]: score["value"] for score in scores}
    assert (scores["EM"], scores["best EM"], scores["best F1"]) == (75, 100, 100)
    assert scores["threshold of best EM"] == max(odds[letter] for letter, text in ANSWERS.items() if text)

    failed = call_command(*predict, "--output", "b.json", "--clip", 0, 5, "--null-threshold", 1, status=2)
    assert "--clip is for regression, but --path is a checkpoint of question answering" in failed.stderr
    assert "--null-threshold needs --null-odds" in failed.stderr
    failed = call_command(*predict, "--output", "b.json", "--subset", "train", status=2)
    assert "--subset train has 8 questions without their passages" in failed.stderr


def test_mistakes(preprocessed, tmp_path):
    error = preprocessed("--max-positions", 60, "--stride", 0, status=2).stderr
    assert "--stride must be at least 1, but is 0" in error
    assert "--max-positions must be more than --max-query and 3 special symbols (67), but is 60" in error
    assert not (tmp_path / "corpus").exists()
