"""Language models compared with live models of `transformers`, with tiny random weights and no download."""

import json

import numpy as np
import pytest
import torch
from hugging_face import (
    LANGUAGE_MODELS,
    POSITIONS,
    has_head,
    our_model,
    our_output,
    save,
    texts,
    their_model,
    their_output,
)
from tiny import model_inputs, padded, reference_example, tiny_form

from s2sft_fairseq.checkpoints.conversion import read
from s2sft_fairseq.checkpoints.families import recognize
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.objectives.packing import collate

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

WITH_HEAD = [name for name in LANGUAGE_MODELS if "no-head" not in name]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """``converted(name)``: a model, and the folders where it was saved and converted to, each made once."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = their_model(name)
            convert([str(save(name, model, folder / "saved")), "--to", str(folder / "converted")])
            made[name] = (model, folder / "saved", folder / "converted")
        return made[name]

    return make


def form_of(folder, **changes):
    """Return the layout of causal models for a converted folder."""
    symbols = PretrainedDictionary.load(str(folder / "dict.txt"))
    special = {"cls": symbols.bos(), "sep": symbols.eos(), "pad": symbols.pad(), "placeholder": symbols.mask()}
    return tiny_form("causal", **special, target_segment=0, vocab_size=len(symbols), **changes)


def assert_same_output(theirs, ours, lengths):
    tokens, real = texts(lengths, ours.embeddings.tokens.padding_idx)
    segments = torch.zeros_like(tokens)
    expected = their_output(theirs, tokens, real, segments)[real]
    found = our_output(ours, tokens, real, segments, logits=has_head(theirs))[real]
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_same_output_for_sources(converted, name):
    """One text alone, texts with padding, and texts up to the last position, far beyond a local window."""
    theirs, _, folder = converted(name)
    ours = our_model(folder)
    assert_same_output(theirs, ours, [9])
    assert_same_output(theirs, ours, [POSITIONS, 3, 17])


@pytest.mark.parametrize("name", WITH_HEAD)
def test_same_output_for_pairs(converted, name):
    """The target follows its source, as in one text."""
    theirs, _, folder = converted(name)
    ours, form = our_model(folder), form_of(folder)
    rng = np.random.default_rng(1)
    for source, target in ((20, 15), (3, 1), (0, 6)):
        example = reference_example(rng.integers(5, 45, size=source), rng.integers(5, 45, size=target), form)
        batch = collate([example])
        labelled = torch.from_numpy(np.flatnonzero(batch.label != form.pad))
        with torch.no_grad():
            found = ours(**model_inputs(batch), labelled=labelled)
            expected = theirs(input_ids=torch.from_numpy(batch.token)[None]).logits[0, labelled]
        assert len(labelled) == target + 1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", WITH_HEAD)
def test_same_gradients(converted, name):
    """The gradients of every parameter; theirs are converted like parameters."""
    theirs, _, folder = converted(name)
    ours, form = our_model(folder), form_of(folder)
    rng = np.random.default_rng(2)
    batch = collate([reference_example(rng.integers(5, 45, size=21), rng.integers(5, 45, size=13), form)])
    tokens = torch.from_numpy(batch.token)
    theirs.zero_grad()
    theirs(input_ids=tokens[None]).logits.square().mean().backward()
    ours(**model_inputs(batch)).square().mean().backward()
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters(remove_duplicate=False)}
    config = theirs.config.to_dict()
    shift = 1 if name.startswith("gemma") else 0  # conversion adds 1 to the weights of norms
    expected = read(recognize(gradients, config), gradients, config, parameter_shapes).weights
    found = {key: parameter.grad for key, parameter in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        if key.endswith("norm.weight"):
            factor = query_scale(theirs.config) if key.endswith("query_norm.weight") else 1
            gradient = (gradient / factor - shift) / factor
        tolerance = 1e-4 * max(1, float(gradient.abs().max()))
        torch.testing.assert_close(found[key], gradient, atol=tolerance, rtol=0)


def query_scale(config):
    """Return the factor that conversion puts into the norm of queries."""
    scalar = getattr(config, "query_pre_attn_scalar", None)
    return 1 if scalar is None else (config.head_dim / scalar) ** 0.5


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_written_back_and_read_again(converted, tmp_path, name):
    """The bits are the same, and `transformers` computes the same with the exported folder."""
    theirs, _, folder = converted(name)
    export([str(folder), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    convert([str(tmp_path / "exported"), "--to", str(tmp_path / "again")])
    before, after = (load_checkpoint(where / "model.pt")["model"] for where in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    for key, value in before.items():
        # A scale of scores in the norm of queries rounds: their weights, 1 less, have fewer bits left.
        tolerance = 1e-7 if query_scale(theirs.config) != 1 and key.endswith("query_norm.weight") else 0
        torch.testing.assert_close(after[key], value, atol=tolerance, rtol=0, msg=key)
    first, second = (PretrainedEncoder.open(where) for where in (folder, tmp_path / "again"))
    default = {"unrotated_layers_every": 0}
    assert {**default, **first.sizes} == {**default, **second.sizes}
    assert first.sizes["source_visibility"] == "causal"
    assert (first.newly_initialized, first.layout) == (second.newly_initialized, second.layout)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", attn_implementation="eager").eval()
    if not has_head(theirs):
        again = again.base_model
    assert_same_output(again, our_model(folder), [POSITIONS, 11])
    stated, symbols = again.config, PretrainedDictionary.load(str(folder / "dict.txt"))
    assert (stated.bos_token_id, stated.eos_token_id) == (symbols.bos(), symbols.eos())
    assert "cls_token_id" not in json.loads((tmp_path / "exported" / "config.json").read_text())
    if name != "smollm3-rotated":  # which is a Llama
        assert stated.model_type == theirs.config.model_type


HYPOTHESES, MOST_TOKENS = 500, 12


@pytest.mark.parametrize("name", ["llama-3", "smollm3", "qwen2", "qwen3-untied", "gemma3-linear"])
def test_same_greedy_hypotheses(converted, name):
    """Those of transformers' ``generate`` after the same prompts, step by step with a cache."""
    theirs, _, folder = converted(name)
    ours, form = our_model(folder), form_of(folder)
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 20, size=HYPOTHESES)
    sources = [form.source(rng.integers(5, 45, size=length)) for length in lengths]
    never = (form.pad, form.cls, form.placeholder)
    options = SearchOptions(beam=1, max_len_b=MOST_TOKENS, keep_unfinished=True, never_generated=never)
    batch = {"net_input": {"src_tokens": padded(sources, form.pad)}, "target": None}
    found = SequenceGenerator([ours], form, options).generate([ours], batch)
    expected = their_greedy(theirs, sources, form, never)
    ended = 0
    for hypotheses, theirs_of in zip(found, expected, strict=True):
        tokens = hypotheses[0]["tokens"].tolist()
        if form.sep in theirs_of:
            ended += 1
            theirs_of = theirs_of[: theirs_of.index(form.sep) + 1]
        assert tokens[: len(theirs_of)] == theirs_of
        assert len(tokens) <= len(theirs_of) + 1
    assert 0 < ended < HYPOTHESES
    assert len({tuple(hypotheses[0]["tokens"].tolist()) for hypotheses in found}) > 0.8 * HYPOTHESES


def their_greedy(model, sources, form, never):
    """Return the tokens that transformers generates after each source and the symbol that ends it."""
    prompts = [torch.from_numpy(np.append(source, form.sep)) for source in sources]
    tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=form.pad, padding_side="left")
    longest = tokens.size(1)
    real = torch.stack([torch.arange(longest) >= longest - len(prompt) for prompt in prompts])
    generated = model.generate(
        input_ids=tokens,
        attention_mask=real.long(),
        do_sample=False,
        min_new_tokens=1,
        max_new_tokens=MOST_TOKENS,
        suppress_tokens=list(never),
        eos_token_id=form.sep,
        pad_token_id=form.pad,
    )
    return generated[:, longest:].tolist()
