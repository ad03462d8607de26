"""Sources and targets of an encoder-decoder, by hand."""

import numpy as np

from s2sft_fairseq.objectives.encoder_decoder_form import EncoderDecoderForm

PREFIX, EOS, PAD = 40, 2, 1


def test_sources_and_targets():
    form = EncoderDecoderForm((PREFIX,), EOS, PAD, max_source=5, max_target=4)
    assert form.source_specials == 2
    assert form.source(np.array([7, 8])).tolist() == [PREFIX, 7, 8, EOS]
    assert form.source(np.array([5, 6, 7, 8, 9])).tolist() == [PREFIX, 5, 6, 7, EOS]
    assert form.source(np.array([], dtype=int)).tolist() == [PREFIX, EOS]
    assert form.target(np.array([7, 8])).tolist() == [7, 8, EOS]
    assert form.target(np.array([5, 6, 7, 8])).tolist() == [5, 6, 7, EOS]


def test_nothing_before_the_source():
    form = EncoderDecoderForm((), EOS, PAD, max_source=5, max_target=4)
    source = form.source(np.array([7, 8]))
    assert source.tolist() == [7, 8, EOS] and source.dtype == np.int64


def test_of_several_fields_the_longest_is_cut():
    """A passage gives way to the answer behind it."""
    form = EncoderDecoderForm((PREFIX,), EOS, PAD, max_source=9, max_target=4)
    source = form.source(np.array([5, 5, 5, 5, 5, 5, EOS, 7, 8]))
    assert source.tolist() == [PREFIX, 5, 5, 5, 5, EOS, 7, 8, EOS]
    assert source.dtype == np.int64
