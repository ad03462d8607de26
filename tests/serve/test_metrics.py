from s2sft_fairseq.serve.metrics import Histogram, Metrics


def test_histogram():
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 3):
        histogram.add(value)
    assert histogram.lines("x") == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2.5"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 6.500000",
        "x_count 4",
    ]


def test_metrics():
    metrics = Metrics()
    metrics.queue_length = lambda: 7
    metrics.count_request("/generate", 200, 0.02)
    metrics.count_request("/generate", 200, 0.2)
    metrics.count_request("/score", 422, 0.001)
    metrics.count_batch(3, 0.3)
    lines = metrics.text().splitlines()
    assert 's2sft_requests_total{path="/generate",status="200"} 2' in lines
    assert 's2sft_requests_total{path="/score",status="422"} 1' in lines
    assert "s2sft_queue_length 7" in lines
    assert 's2sft_request_seconds_bucket{le="0.025"} 2' in lines
    assert 's2sft_batch_size_bucket{le="2"} 0' in lines and 's2sft_batch_size_bucket{le="4"} 1' in lines
    assert "s2sft_model_seconds_sum 0.300000" in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert names == [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(names) == len(set(names)) == 5
