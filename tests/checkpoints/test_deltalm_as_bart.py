"""DeltaLM as BART and as Marian: compared with the models of transformers, and converted back."""

import json

import pytest
import torch
from tiny_deltalm import random_deltalm

from s2sft_fairseq.checkpoints.deltalm import COPIES, POSITIONS
from s2sft_fairseq.checkpoints.deltalm_as_bart import bart_config, bart_weights, read_bart
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, FAIRSEQ_SYMBOLS, ROBERTA_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm import SIZES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

WORDS = [f"w{number}" for number in range(40)]
FAIRSEQ = PretrainedDictionary.of([*FAIRSEQ_SYMBOLS, *WORDS, ROBERTA_SYMBOLS.mask])
BERT = PretrainedDictionary.of([*vars(BERT_SYMBOLS).values(), *WORDS])
BATCH = ([[7, 8, 9, 10, 11], [12, 7]], [[20, 21, 22, 23, 24, 25, 26], [30, 31, 32]])


def own_weights(model):
    return {name: value for name, value in model.state_dict().items() if name not in COPIES and "version" not in name}


def made(dictionary, **sizes):
    """Return a model, its weights by our names, and all its sizes."""
    model, cfg = random_deltalm(dictionary, **sizes)
    with torch.no_grad():
        for side in (model.encoder, model.decoder):
            side.embed_positions.weight[: dictionary.pad() + 1] = 0  # no position uses these rows
    return model, own_weights(model), {name: getattr(cfg, name) for name in SIZES}


def config_of(sizes, dictionary):
    return {
        **bart_config(sizes),
        **{"vocab_size": len(dictionary), "decoder_vocab_size": len(dictionary), "pad_token_id": dictionary.pad()},
        **{"eos_token_id": dictionary.eos(), "decoder_start_token_id": dictionary.eos()},
    }


def loaded(weights, config, folder):
    write_safetensors(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@torch.no_grad()
def logits_of_both(ours, theirs, dictionary):
    """Return the logits of both models for each pair of `BATCH`, padded on the right, without the padding's logits."""
    pad, eos = dictionary.pad(), dictionary.eos()
    sources = [torch.tensor([*source, eos]) for source in BATCH[0]]
    targets = [torch.tensor([eos, *target]) for target in BATCH[1]]
    source, target = (torch.nn.utils.rnn.pad_sequence(rows, True, pad) for rows in (sources, targets))
    lengths = torch.tensor([len(row) for row in sources])
    found = ours(source, lengths, target)[0]
    other = theirs(input_ids=source, attention_mask=(source != pad).long(), decoder_input_ids=target).logits
    return [
        torch.cat([rows[: len(row)] for rows, row in zip(logits, targets, strict=True)]) for logits in (found, other)
    ]


@pytest.mark.parametrize("embedding_norm", ["yes", "no"])
@pytest.mark.parametrize(
    ("dictionary", "epsilon", "activation"),
    [
        (FAIRSEQ, 1e-5, "gelu"),
        (FAIRSEQ, 1e-12, "gelu_tanh"),
        (FAIRSEQ, 1e-6, "relu"),
        (BERT, 1e-12, "gelu"),
    ],
    ids=["xlm-r", "tanh", "relu", "bert"],
)
def test_the_same_function_and_back(tmp_path, embedding_norm, dictionary, epsilon, activation):
    options = {"layernorm_embedding": embedding_norm, "layer_norm_eps": epsilon, "activation_fn": activation}
    model, own, sizes = made(dictionary, **options)
    weights, config = bart_weights(own, sizes, dictionary.pad()), config_of(sizes, dictionary)
    theirs = loaded(weights, config, tmp_path)
    assert type(theirs).__name__ == {"yes": "BartForConditionalGeneration", "no": "MarianMTModel"}[embedding_norm]
    assert len(theirs.model.decoder.layers) == 2 * len(model.decoder.layers)
    found, other = logits_of_both(model, theirs, dictionary)
    assert found.std() > 0.3
    torch.testing.assert_close(found, other, atol=1e-4, rtol=0)
    again, known = read_bart(weights, json.loads(json.dumps(config)), dictionary.pad())
    assert known == {"encoder_attention_heads": 4, "layer_norm_eps": epsilon, "activation_fn": activation}
    assert again.keys() == own.keys()
    assert all(torch.equal(again[name], value) for name, value in own.items())


def test_small_variances(tmp_path):
    """Variances near the epsilon, for which a second layer norm would change the result."""
    model, _, sizes = made(FAIRSEQ, layernorm_embedding="no")
    with torch.no_grad():
        for name, value in model.named_parameters():
            value *= 0.01 if "layer_norm" in name or "embed" in name else 1.0
            if "decoder.layers.1.final_layer_norm" in name:
                value *= 1e4
    own = own_weights(model)
    theirs = loaded(bart_weights(own, sizes, FAIRSEQ.pad()), config_of(sizes, FAIRSEQ), tmp_path)
    found, other = logits_of_both(model, theirs, FAIRSEQ)
    torch.testing.assert_close(found, other, atol=1e-4 * float(found.abs().max()), rtol=0)


def test_sixteen_bits_become_32_and_short_tables_are_filled():
    _, own, sizes = made(FAIRSEQ)
    own = {name: value.half() for name, value in own.items()}
    own[POSITIONS[0]] = own[POSITIONS[0]][:20]
    weights = bart_weights(own, sizes, FAIRSEQ.pad())
    assert {value.dtype for value in weights.values()} == {torch.float32}
    table = weights["model.encoder.embed_positions.weight"]
    assert table.shape == weights["model.decoder.embed_positions.weight"].shape
    assert table[20:].eq(0).all() and torch.equal(table[:20], own[POSITIONS[0]].float())


def test_other_models_are_refused():
    _, own, sizes = made(FAIRSEQ)
    weights, config = bart_weights(own, sizes, FAIRSEQ.pad()), config_of(sizes, FAIRSEQ)
    with pytest.raises(
        UserError, match=r"^this is a BART whose decoder is not that of a DeltaLM \(.* no s2sft_deltalm"
    ):
        read_bart(weights, {**config, "s2sft_deltalm": None}, FAIRSEQ.pad())
    for changes in (
        {"decoder_layers": 3},
        {"decoder_layers": "4"},
        {"s2sft_deltalm": {"scale": 1, "layer_norm_eps": 0}},
    ):
        with pytest.raises(UserError, match="s2sft_deltalm"):
            read_bart(weights, {**config, **changes}, FAIRSEQ.pad())
    for name, value in (
        ("model.decoder.layers.3.self_attn.out_proj.weight", "0"),
        ("model.decoder.layers.0.encoder_attn.out_proj.bias", "0"),
        ("model.decoder.layers.2.final_layer_norm.weight", "0.000198"),
        ("final_logits_bias", "0"),
    ):
        with pytest.raises(UserError, match=rf"\({name} is not {value}\)"):
            read_bart({**weights, name: weights[name] + 0.1}, config, FAIRSEQ.pad())
    name = "model.decoder.layers.3.self_attn.out_proj.weight"
    del weights[name]
    with pytest.raises(UserError, match=rf"\(it lacks {name}\)"):
        read_bart(weights, config, FAIRSEQ.pad())
