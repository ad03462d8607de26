"""From a checkpoint of each family and raw text to readable hypotheses, by the command lines alone."""

from pathlib import Path

import pytest
import torch
from command_output import generated, last_value
from hugging_face import LANGUAGE_MODELS, MODELS, initial_model, save
from neobert import write_neobert

# Text that each tokenizer can spell; SentencePiece was trained on these words.
TEXT = {
    "wordpiece": ["w5 w6 w7", "w8", "w9 w10 w9"],
    "mpnet": ["w6 w7 w8", "w9", "w10 w11 w10"],
    "byte_level_bpe": ["abc DE", "x  y", "Qrst"],
    "tokenizer_json": ["abc DE", "x  y", "Qrst"],
    "gemma": ["abc DE", "x  y", "Qrst"],
    "llama": ["abc DE", "x  y", "Qrst"],
    "spm": ["the quick brown fox", "lazy", "a sphinx of black quartz"],
    "sentencepiece": ["the quick brown fox", "lazy", "a sphinx of black quartz"],
}


# Pre-norm models of this width learn steadily with a smaller learning rate and larger initial weights.
LEARNING_RATES = dict.fromkeys(("mmbert", "eurobert-grouped", "ultrabert", "gte", "neobert"), 0.003)


ENCODERS = [
    "bert-6-segments",
    pytest.param("roberta", marks=pytest.mark.rounding),
    *("xlm-roberta", "mpnet", "electra-small-generator", "electra-discriminator", "ernie"),
    pytest.param("modernbert", marks=pytest.mark.rounding),
    *("mmbert", "eurobert-grouped", "ultrabert", "nomic-bert", "gte", "jina", "neobert", "deberta-no-head"),
]
SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(
    "method", ["pseudo_masked", *(pytest.param(method, marks=SLOW) for method in ("causal", "infilling", "blocks"))]
)
def test_from_a_checkpoint_to_text(call_command, until_learned, tmp_path, name, method):
    learn_texts(call_command, until_learned, tmp_path, name, method)


@pytest.mark.parametrize("name", ["smollm3", pytest.param("llama-3", marks=SLOW), "gemma3"])
@pytest.mark.parametrize(
    "method", ["causal", *(pytest.param(method, marks=SLOW) for method in ("pseudo_masked", "blocks"))]
)
def test_from_a_language_model_to_text(call_command, until_learned, tmp_path, name, method):
    """A plain folder of transformers writes the same texts, after the same symbols, if no placeholder is needed."""
    lines = learn_texts(call_command, until_learned, tmp_path, name, method)
    words = ("--tokenizer-dir", "encoder", "--format", "hugging_face", "--to", "plain")
    done = call_command("export", "tuned/checkpoint_last.pt", *words)
    assert ("which predicts at placeholders" in done.stdout) == (method != "causal")
    if method == "causal":
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        # AutoTokenizer would take Gemma's own class, which splits texts as Gemma's tokenizer does, not this one.
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained("plain")
        model = transformers.AutoModelForCausalLM.from_pretrained("plain")
        for line in lines:
            source = tokenizer.encode(line, add_special_tokens=False)
            prompt = [model.config.bos_token_id, *source, model.config.eos_token_id]
            written = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
            assert written.tolist() == [*source, model.config.eos_token_id]


def learn_texts(call_command, until_learned, tmp_path, name, method):
    """Learn three texts by heart, write them again by the command lines, and return them."""
    sizes = {"hidden_size": 32, "intermediate_size": 48}
    if name in LEARNING_RATES or name in LANGUAGE_MODELS:
        sizes["initializer_range"] = 0.1
    if name == "neobert":
        write_neobert(tmp_path / "saved")
    else:
        save(name, initial_model(name, **sizes), tmp_path / "saved")
    call_command("convert", "saved", "--to", "encoder", "--max-positions", "65")
    lines = TEXT["wordpiece" if name == "neobert" else {**MODELS, **LANGUAGE_MODELS}[name][1]]
    Path("raw").mkdir()
    # Each copy masks other tokens, and the loss of an update is that of all copies.
    copies = 8 if method == "blocks" else 1
    for split, times in (("train", copies), ("valid", 4), ("test", 4)):
        for side in ("src", "tgt"):
            Path("raw", f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines * times), encoding="utf-8")
    files = [f"raw/{split}.{side}" for split in ("train", "valid", "test") for side in ("src", "tgt")]
    call_command("tokenize", "--tokenizer-dir", "encoder", "--input", *files, "--output-dir", "tokens")
    words = ("-s", "src", "-t", "tgt", "--srcdict", "encoder/dict.txt", "--joined-dictionary", "--destdir", "data")
    prefixes = ("--trainpref", "tokens/train", "--validpref", "tokens/valid", "--testpref", "tokens/test")
    assert "replaced by" not in call_command("preprocess", *words, *prefixes).stderr
    limits = ("--max-source-positions", "40", "--max-target-positions", "24")
    # Enough to memorize three texts.
    learning = (
        *(
            "--lr",
            LEARNING_RATES.get(name, 0.003 if name in LANGUAGE_MODELS else 0.01),
            "--batch-size",
            3 * copies,
            "--label-smoothing",
            "0",
        ),
        *("--dropout", "0", "--attention-dropout", "0"),
    )
    # A model that has only seen corrupted targets may not know the three texts themselves.
    if method == "pseudo_masked":
        learning += ("--target-mask-prob", "0")
    # An epoch is one update; the last one is saved and validated.
    saving = ("--save-dir", "tuned", "--no-epoch-checkpoints", "--save-interval", 9999)
    saving = (*saving, "--validate-interval", 9999, "--log-format", "simple")
    words = ("data", "--pretrained", "encoder", *limits, *learning, *saving, "--cpu", "--num-workers", "0")
    words = (*words, "--finetune-method", method)

    def learned(log):  # by the saved model, each token is far more likely than all others together
        return last_value(log.stdout, "loss", "| valid on") < 0.02

    until_learned(lambda updates: call_command("train", *words, "--max-update", updates), learned, 100)
    shown = ("--bpe", "pretrained", "--tokenizer-dir", "encoder", "--cpu", "--beam", "2")
    done = call_command("generate", "data", "--path", "tuned/checkpoint_last.pt", *shown)
    hypotheses = generated(done.stdout, "D")
    assert [hypotheses[number][0] for number in range(len(lines) * 4)] == lines * 4
    Path("one.txt").write_text(f"{lines[0]}\n", encoding="utf-8")
    done = call_command("interactive", "data", "--path", "tuned/checkpoint_last.pt", *shown, "--input", "one.txt")
    assert generated(done.stdout, "D")[0][0] == lines[0]
    return lines
