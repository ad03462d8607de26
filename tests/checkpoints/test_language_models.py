"""Language models compared with live models of `transformers`, with tiny random weights and no download."""

import json
import shutil

import numpy as np
import pytest
import torch
from hugging_face import (
    LANGUAGE_MODELS,
    LLAMA3,
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
from s2sft_fairseq.checkpoints.families import family_of, recognize
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.safetensors_file import read_safetensors
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.convert import convert_encoder, parameter_shapes
from s2sft_fairseq.models.unilm_config import SIZES
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


def changed(saved, folder, remove=(), **changes):
    """Return a copy of a configuration in which settings are removed or changed."""
    config = json.loads((saved / "config.json").read_text())
    config = {name: value for name, value in config.items() if name not in remove} | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def sizes_of(saved, config):
    return convert_encoder(open_source(saved, config)).sizes


def test_configurations_of_older_transformers(converted, tmp_path):
    """Before transformers 5, bases and scalings had settings of their own."""
    _, saved, folder = converted("llama-3")
    scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    older = changed(saved, tmp_path, ["rope_parameters"], rope_theta=500.0, rope_scaling=scaling)
    assert sizes_of(saved, older) == PretrainedEncoder.open(folder).sizes
    assert sizes_of(saved, older)["rotary_scaling"] == "llama3:8:1:4:16"
    _, saved, folder = converted("gemma3-linear")
    bases = {"rope_theta": 1000, "rope_local_base_freq": 50, "rope_scaling": {"type": "linear", "factor": 4}}
    for pattern in ("sliding_window_pattern", "_sliding_window_pattern"):
        older = changed(saved, tmp_path, ["rope_parameters", "layer_types"], **bases, **{pattern: 3})
        assert sizes_of(saved, older) == PretrainedEncoder.open(folder).sizes
    _, saved, folder = converted("smollm3")
    older = changed(saved, tmp_path, ["no_rope_layers", "layer_types"], no_rope_layer_interval=2)
    assert sizes_of(saved, older) == PretrainedEncoder.open(folder).sizes


@pytest.mark.parametrize("name", ["llama", "smollm3", "qwen2", "qwen3-untied", "gemma3"])
def test_settings_that_are_left_out(converted, tmp_path, name):
    """They have the values of `transformers`."""
    _, saved, _ = converted(name)
    copied = shutil.copytree(saved, tmp_path / "saved")
    names = ("tie_word_embeddings", "rope_parameters", "rms_norm_eps", "hidden_act", "hidden_activation")
    names += ("attention_bias", "mlp_bias", "layer_types", "no_rope_layers", "no_rope_layer_interval")
    shutil.copy(changed(copied, tmp_path / "changed", names), copied)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(copied, attn_implementation="eager").eval()
    convert([str(copied), "--to", str(tmp_path / "made")])
    assert_same_output(theirs, our_model(tmp_path / "made"), [POSITIONS, 3, 17])


FULL, LOCAL = "full_attention", "sliding_attention"
LINEAR = {"rope_type": "linear", "factor": 4.0}
REFUSED = [
    (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "rope_type must be one of default, linear, llama3",
    ),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type must be one of"),
    ("llama", {"rope_scaling": {"rope_type": ["linear"]}}, "rope_type must be one of"),
    *(
        ("llama", {"rope_parameters": {**LINEAR, "factor": factor}}, "factor must be a number above 0")
        for factor in (0, -1.0, True, "4", None)
    ),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor must be a number above 0"),
    ("llama-3", {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}}, "have LOW below HIGH, but is llama3:8:4:4:16"),
    ("llama", {"rope_scaling": LINEAR}, "rope_scaling must be that of rope_parameters"),
    ("llama", {"rope_parameters": {FULL: {"rope_theta": 5.0}}}, "rope_parameters must be those of all layers"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
    ("llama", {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor must be"),
    ("llama", {"layer_types": [FULL, LOCAL, FULL]}, "layer_types must be 'full_attention' in all 3 layers"),
    ("llama", {"layer_types": [FULL]}, "layer_types must be 'full_attention' in all 3 layers"),
    ("llama", {"num_key_value_heads": 3}, "--encoder-attention-heads must be a multiple of --key-value-heads"),
    ("llama-3", {"head_dim": 10**12}, "--head-dim must be at most 1,000,000"),
    ("llama-3", {"head_dim": -4}, "--head-dim must be at least 0"),
    ("llama-3", {"head_dim": 7}, "--head-dim must be even"),
    ("llama-3", {"head_dim": 10}, "q_proj.weight|attention.qkv.weight must have the shape"),
    ("smollm3", {"no_rope_layers": [1, 0, 0, 1, 1]}, "no_rope_layers must be 0 in layers n - 1"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must be 0 in layers n - 1"),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval must be a whole number"),
    *(
        (name, {"num_key_value_heads": None}, "have num_key_value_heads")
        for name in ("smollm3", "qwen2", "qwen3", "gemma3")
    ),
    *((name, {"head_dim": None}, "have head_dim") for name in ("qwen3", "gemma3")),
    *(
        (name, {"use_sliding_window": True}, "use_sliding_window must be False")
        for name in ("smollm3", "qwen2", "qwen3")
    ),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be None"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping must be None"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
    ("gemma3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
    ("gemma3", {"sliding_window": 1}, "sliding_window must be at least 2"),
    ("gemma3", {"sliding_window": None}, "have sliding_window"),
    ("gemma3", {"sliding_window": 10**12}, "--local-attention-window must be at most 2,000,000"),
    ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a whole number above 0"),
    ("gemma3", {"query_pre_attn_scalar": None}, "have query_pre_attn_scalar"),
    ("gemma3", {"rope_parameters": {LOCAL: LINEAR}}, "rope_type must be 'default' .* for sliding_attention"),
    ("gemma3", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters.rope_theta must be an object"),
    (
        "gemma3",
        {"layer_types": [LOCAL, FULL, FULL, LOCAL, LOCAL]},
        "layer_types must have 'full_attention' in every n-th",
    ),
    (
        "gemma3",
        {"layer_types": None, "sliding_window_pattern": 0},
        "sliding_window_pattern must be a whole number above 0",
    ),
    *(
        ("llama", {"model_type": kind}, f"model_type must be one of .*, but is '{kind}'")
        for kind in ("mistral", "gemma3", "gemma2", "qwen3_moe")
    ),
]


@pytest.mark.parametrize(("name", "changes", "problem"), REFUSED)
def test_refused_settings(converted, tmp_path, name, changes, problem):
    """Naming the setting and the value that is needed."""
    _, saved, _ = converted(name)
    with pytest.raises(UserError, match=problem):
        sizes_of(saved, changed(saved, tmp_path, **changes))


def test_only_local_layers(converted, tmp_path):
    """Gemma 3's pattern in a model with fewer layers than it has."""
    theirs = their_model("gemma3", sliding_window_pattern=6)
    convert([str(save("gemma3", theirs, tmp_path / "saved")), "--to", str(tmp_path / "made")])
    assert_same_output(theirs, our_model(tmp_path / "made"), [POSITIONS, 3, 17])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_bfloat16_stays(tmp_path, name):
    """Norms of Gemma 3 are single precision here, because 1 + w has more than 8 bits, and as before in an export."""
    theirs = their_model(name).to(torch.bfloat16)
    with torch.no_grad():
        theirs.model.norm.weight[:3] = torch.tensor([1e-3, -2e-7, 3.0])
    saved = save(name, theirs, tmp_path / "saved")
    convert([str(saved), "--to", str(tmp_path / "made")])
    weights = load_checkpoint(tmp_path / "made" / "model.pt")["model"]
    wide = {key for key, value in weights.items() if value.dtype != torch.bfloat16}
    assert wide == ({key for key in weights if key.endswith("norm.weight")} if name == "gemma3" else set())
    again = type(theirs).from_pretrained(saved, dtype=torch.float32, attn_implementation="eager").eval()
    assert_same_output(again, our_model(tmp_path / "made"), [12, 7])
    export([str(tmp_path / "made"), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    before, after = (read_safetensors(where / "model.safetensors") for where in (saved, tmp_path / "exported"))
    assert before.keys() == after.keys()
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    for key, value in before.items():
        # 1 + w has 24 bits.
        torch.testing.assert_close(after[key].float(), value.float(), atol=2**-24 if name == "gemma3" else 0, rtol=0)
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"


def test_shards(converted, tmp_path):
    theirs, _, folder = converted("qwen2-tied")
    save("qwen2-tied", theirs, tmp_path / "sharded", max_shard_size="10KB")
    convert([str(tmp_path / "sharded"), "--to", str(tmp_path / "made")])
    expected, found = (load_checkpoint(where / "model.pt")["model"] for where in (folder, tmp_path / "made"))
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_names_without_a_type():
    """The names of Llama are those of EuroBERT: only the model_type tells them apart."""
    names = ["model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"]
    for kind in ("llama", "smollm3", "qwen2", "qwen3", "gemma3_text", "eurobert"):
        assert kind in recognize(names, {"model_type": kind}).model_types
    with pytest.raises(UserError, match=r"but is None; .*; the nearest is Llama \(llama\)"):
        recognize(names, {})


def test_which_family_is_written(converted):
    """It follows from the sizes; what no family has is refused by name."""
    sizes = {**SIZES, **PretrainedEncoder.open(converted("llama")[2]).sizes}
    assert family_of(sizes, SIZES).name == "Llama"
    assert family_of({**sizes, "head_dim": 8, "rotary_scaling": "linear:4.0"}, SIZES).name == "Llama"
    assert family_of({**sizes, "biases": "qkv"}, SIZES).name == "Qwen2"
    assert family_of({**sizes, "query_key_norm": "rms"}, SIZES).name == "Qwen3"
    for every in (2, 4):  # of 3 layers
        assert family_of({**sizes, "unrotated_layers_every": every}, SIZES).name == "SmolLM3"
    assert family_of({**sizes, "source_visibility": "both"}, SIZES).name == "EuroBERT"
    for changes, problem in (
        ({"local_attention_window": 8}, "--local-attention-window is 8, but 0 in Llama"),
        ({"embedding_scale": 2.0}, "--embedding-scale is 2.0, but 1.0 in Llama"),
        ({"norm": "layer"}, "--norm is layer, but rms in Llama"),
        ({"biases": "fc1,qkv"}, "--biases is fc1,qkv, but qkv in Qwen2"),
        ({"query_key_norm": "rms", "unrotated_layers_every": 2}, "--unrotated-layers-every is 2, but 0 in Qwen3"),
        ({"source_visibility": "both", "head_dim": 12}, "--head-dim is 12, but 8 in EuroBERT"),
        ({"source_visibility": "both", "rotary_scaling": "linear:4"}, "--rotary-scaling is linear:4, but  in EuroBERT"),
    ):
        with pytest.raises(UserError, match=problem):
            family_of({**sizes, **changes}, SIZES)
