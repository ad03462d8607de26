"""NaN in the scores is an error that names the sentence, in every search."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator as FairseqGenerator
from tiny import CLS, MASK, PAD, UNK, objective_of, padded, tiny_form, tiny_model, words

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.memory import generate_in_halves
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import NotANumberError, SentenceError, check_log_probs
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.objectives.objective import OBJECTIVES

BASE = SearchOptions(beam=3, max_len_b=9, min_len=9, never_generated=(PAD, UNK, CLS, MASK))
SEARCHES = {
    "beam": {},
    "greedy": {"beam": 1},
    "sampling": {"sampling": True, "sampling_topp": 0.9},
    "ranked each step": {"rank_each_step": True},
    "drafts at placeholders": {"beam": 1, "draft_placeholders": 2},
    "drafts from the source": {"beam": 1, "draft_source": 2},
}
IMPOSSIBLE = {("drafts at placeholders", "causal")}  # it has no placeholders
LENGTHS = (3, 12, 1, 5)
LONGEST = 1  # its index in LENGTHS


def model_without(position, value=float("nan")):
    """Return a model that fails for each sentence that reaches a position."""
    model = tiny_model()
    with torch.no_grad():
        model.embeddings.positions.weight[position:] = value
    return model


def sample_of(form, **entries):
    rng = np.random.default_rng(3)
    return {"net_input": {"src_tokens": padded([form.source(words(rng, length)) for length in LENGTHS])}, **entries}


@pytest.mark.parametrize(
    ("search", "method"),
    [(search, method) for search in SEARCHES for method in OBJECTIVES if (search, method) not in IMPOSSIBLE],
)
def test_a_source_for_which_the_model_fails(search, method):
    form = tiny_form(method)
    models = [model_without(13)]
    generator = SequenceGenerator(models, form, replace(BASE, **SEARCHES[search], max_len_b=3, min_len=3))
    with pytest.raises(NotANumberError, match=r"^sentence 1 of a batch: .*the model gives NaN$") as error:
        generator.generate(models, sample_of(form))
    assert error.value.sentence == LONGEST
    with pytest.raises(UserError, match=r"^sentence 5: "):
        generator.generate(models, sample_of(form, id=torch.tensor([4, 5, 6, 7])))


def test_later_in_the_search_too():
    """At the seventh token of the second longest sentence, when others have left the batch."""
    form = tiny_form("causal")
    models = [model_without(13)]
    sample = sample_of(form)
    sample["net_input"]["src_tokens"][LONGEST, 1:] = PAD
    with pytest.raises(NotANumberError) as error:
        SequenceGenerator(models, form, BASE).generate(models, sample)
    assert error.value.sentence == 3


def test_overflow_in_float16():
    form = tiny_form("causal")
    model = model_without(13, 6e4)
    with torch.no_grad():
        model.embeddings.segments.weight[:] = 6e4  # their sum overflows
    models = [model.half()]
    with pytest.raises(UserError, match=r"^sentence 1 of .* float16 ends at 65,504: give --bf16 in place of --fp16"):
        SequenceGenerator(models, form, replace(BASE, max_len_b=3, min_len=3)).generate(models, sample_of(form))


def test_scores_of_references():
    form = tiny_form("causal")
    models = [model_without(13)]
    targets = padded([form.target(words(np.random.default_rng(1), 2)) for _ in LENGTHS])
    with pytest.raises(UserError, match=r"^sentence 8: .*the model gives NaN"):
        scorer = ReferenceScorer(models, form, objective_of(form))
        scorer.generate(models, sample_of(form, target=targets, id=torch.tensor([7, 8, 9, 10])))


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_one_logit_is_enough(logit):
    for column in (0, 7, 999):
        logits = torch.zeros(3, 2, 1000)
        logits[2, 1, column] = logit
        check_log_probs(logits[:2].log_softmax(dim=-1), torch.float32, int)
        with pytest.raises(NotANumberError) as error:
            check_log_probs(logits.log_softmax(dim=-1), torch.float32, lambda row: 10 * row)
        assert error.value.sentence == 20


def test_forbidden_tokens_are_no_error():
    log_probs = torch.full((2, 3, 9), float("-inf"))
    log_probs[..., 4] = 0
    check_log_probs(log_probs, torch.float16, int)


def test_a_batch_in_halves():
    def generate(source):
        if len(source) > 1:
            raise MemoryError
        if source[0, 0] == 6:
            raise NotANumberError(0, torch.float32)
        return [source]

    with pytest.raises(SentenceError, match="gives NaN") as error:
        generate_in_halves(generate, torch.arange(1, 9).unsqueeze(1), pad=PAD)
    assert error.value.sentence == 5


@pytest.fixture
def encoder_decoder():
    """A tiny DeltaLM, and a batch of two sources; the second is longer."""
    symbols = Dictionary()
    for number in range(30):
        symbols.add_symbol(f"w{number}")
    sizes = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2, "max_positions": 32}
    cfg = DeltaLMConfig(encoder_layers=2, decoder_layers=1, dropout=0.0, **sizes)
    model = DeltaLMModel.build_model(cfg, SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols))
    source = torch.tensor([[symbols.pad()] * 6 + [5, 6, 2], [*range(4, 12), 2], [symbols.pad()] * 5 + [5, 6, 7, 2]])
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([3, 9, 4])}
    return model.eval(), symbols, {"net_input": net_input}


def spoil(model, side, first):
    """Make positions from `first` on NaN (0: from the first token on)."""
    with torch.no_grad():
        getattr(model, side).embed_positions.weight[2 + first :] = float("nan")


def test_the_search_of_encoder_decoders(encoder_decoder):
    model, symbols, sample = encoder_decoder
    spoil(model, "encoder", 6)
    generator = FairseqGenerator([model], symbols, beam_size=3, max_len_a=0, max_len_b=4)
    with pytest.raises(NotANumberError, match=r"^sentence 1 of a batch: .*the model gives NaN$") as error:
        generator.generate([model], sample)
    assert error.value.sentence == 1
    with pytest.raises(UserError, match=r"^sentence 21: "):
        generator.generate([model], {**sample, "id": torch.tensor([20, 21, 22])})


def test_the_search_of_encoder_decoders_when_others_have_ended(encoder_decoder):
    """Prefixes end the first two sentences before the third reaches the position."""
    model, symbols, sample = encoder_decoder
    spoil(model, "decoder", 5)
    end, pad = symbols.eos(), symbols.pad()
    prefixes = torch.tensor([[5, end, pad, pad, pad, pad], [5, 6, end, pad, pad, pad], [5, 6, 7, 8, 9, 10]])
    generator = FairseqGenerator([model], symbols, beam_size=1, max_len_a=0, max_len_b=8)
    with pytest.raises(NotANumberError) as error:
        generator.generate([model], sample, prefix_tokens=prefixes)
    assert error.value.sentence == 2
    spoil(model, "decoder", 0)
    with pytest.raises(NotANumberError) as error:  # nothing from the previous search is left
        generator.generate([model], sample)
    assert error.value.sentence == 0
