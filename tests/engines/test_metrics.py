import pytest
from leadsman.records import LoadSample
from leadsman_engines.metrics import read_metrics

PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"quoted\\" {name}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1001",engine="0"} 1.0
process_start_time_seconds 1.7e+09
"""


def changed(old, new):
    assert old in PAGE
    return read_metrics(PAGE.replace(old, new))


def test_each_rank_has_a_load_of_its_own():
    page = read_metrics(PAGE)

    first, second = page.load(0, "w#0", 7.0), page.load(1, "w#1", 7.0)

    assert first == LoadSample(worker="w#0", at=7.0, running=3, waiting=2, kv_usage=0.25)
    assert second == LoadSample(worker="w#1", at=7.0, running=5, waiting=0, kv_usage=None)


def test_a_count_that_is_not_said_gives_no_sample():
    page = changed(b'vllm:num_requests_waiting{engine="0"', b'vllm:num_requests_hoping{engine="0"')

    assert page.load(0, "w", 7.0) is None
    assert page.load(9, "w", 7.0) is None


def test_the_cache_configuration_comes_as_it_stands():
    page = read_metrics(PAGE)

    assert page.cache_config == {"block_size": "16", "num_gpu_blocks": "1001"}


def test_an_engine_that_sleeps_says_so():
    assert read_metrics(PAGE).ranks[0].is_awake is False
    assert read_metrics(PAGE).ranks[1].is_awake is None


def test_a_later_start_is_another_life():
    before = read_metrics(PAGE)

    after = changed(b"process_start_time_seconds 1.7e+09", b"process_start_time_seconds 1.8e+09")

    assert after.is_of_another_life_than(before)
    assert not before.is_of_another_life_than(before)


@pytest.mark.parametrize(("tokens", "is_another"), [(b"1.0e+06", True), (b"1.6e+06", False)])
def test_without_a_start_time_a_counter_that_fell_is_another_life(tokens, is_another):
    page = PAGE.replace(b"process_start_time_seconds 1.7e+09\n", b"")
    before = read_metrics(page)

    after = read_metrics(page.replace(b"1.5e+06", tokens))

    assert after.is_of_another_life_than(before) is is_another


@pytest.mark.parametrize(("hits", "is_another"), [(64, True), (4096, False)])
def test_hits_that_fell_are_another_life(hits, is_another):
    line = b'vllm:prefix_cache_hits_total{engine="0",model_name="m"} %d\n'
    before = read_metrics(line % 1024)

    after = read_metrics(line % hits)

    assert after.is_of_another_life_than(before) is is_another


def test_tokens_found_cached_are_counted_over_all_that_sglang_tells_apart():
    said = read_metrics(
        PAGE
        + b'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 512\n'
        + b'sglang:cached_tokens_total{dp_rank="2",cache_source="device"} 96\n'
        + b'sglang:cached_tokens_total{dp_rank="2",cache_source="host"} 32\n'
    )

    assert said.load(0, "w#0", 7.0).prefix_hits == 512
    assert said.ranks[1].prefix_hits is None
    assert said.ranks[2].prefix_hits == 128


def test_a_page_that_says_the_same_among_other_lines_reads_the_same():
    page = read_metrics(PAGE)

    again = read_metrics(b"vllm:generation_tokens_total 7\n" + PAGE + b"python_info 1\n")

    assert again == page


def test_the_first_and_the_last_line_count_too():
    page = read_metrics(
        b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 2'
    )

    assert page.load(0, "w", 7.0) == LoadSample(
        worker="w", at=7.0, running=1, waiting=2, kv_usage=None
    )


def test_an_empty_page_says_nothing():
    page = read_metrics(b"")

    assert page.ranks == {}
    assert page.started_at is None


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_running{engine="0"} three\n',
        b'vllm:num_requests_running{engine="0"} NaN\n',
        b'vllm:num_requests_running{engine="zero"} 3\n',
        b'vllm:num_requests_running{engine="0" 3\n',
        b'vllm:num_requests_running{engine="\xff"} 3\n',
    ],
)
def test_a_line_that_is_no_metric_is_a_mistake(line):
    with pytest.raises(ValueError, match=r"."):
        read_metrics(line)
