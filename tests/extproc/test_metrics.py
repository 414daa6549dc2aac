"""Every metric is documented, and is on the page of a real picker under its name."""

from pathlib import Path

from leadsman.condition import Condition
from leadsman.curve import PrefillCurve
from leadsman.records import LoadSample
from leadsman.units import WorkerId
from leadsman_extproc import metrics_reference
from leadsman_extproc.histogram import Histogram
from leadsman_extproc.metrics import MOST_MODELS, OTHER, Counts, Page
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def page(counts, now=100.0):
    registry = CollectorRegistry()
    registry.register(Page(counts, clock=lambda: now))
    return generate_latest(registry).decode()


def standing(name, *, waiting=None, ready=True, heard_at=None):
    load = None
    if waiting is not None:
        load = LoadSample(worker=WorkerId(name), at=0.0, running=2, waiting=waiting, kv_usage=0.5)
    return Condition(
        worker=WorkerId(name),
        model="m",
        ready=ready,
        heard_at=heard_at,
        load=load,
        provenance="own",
        curve=PrefillCurve(overhead=0.1, a=1e-5, b=0.0),
        samples=3,
    )


def test_the_reference_says_what_is_exported():
    assert REFERENCE.read_text() == metrics_reference.written(), "run `make generate`"


def test_a_picker_that_has_counted_nothing_exports_families_of_the_reference_alone():
    documented = REFERENCE.read_text()

    families = list(text_string_to_metric_families(page(Counts())))

    assert families
    assert all(f"`{one.name}" in documented for one in families)


def test_a_histogram_counts_a_value_in_every_bucket_that_holds_it():
    seen = Histogram((1.0, 2.0))

    for value in (0.5, 1.0, 1.5, 9.0):
        seen.observe(value)

    assert seen.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert seen.sum == 12.0


def test_a_pools_figures_are_of_ready_engines_that_have_said_something():
    conditions = [standing("a", waiting=4), standing("b", waiting=9, ready=False), standing("c")]

    told = page(Counts(conditions=lambda: conditions, pool="ns/p"))

    assert 'inference_pool_average_queue_size{name="ns/p"} 4.0' in told
    assert 'llm_d_epp_average_queue_size{name="ns/p"} 4.0' in told
    assert 'inference_pool_ready_pods{name="ns/p"} 2.0' in told


def test_what_no_engine_has_said_is_absent_and_not_zero():
    told = page(Counts(conditions=lambda: [standing("a")], pool="p"))

    assert "inference_pool_average_queue_size{" not in told
    assert 'leadsman_state_age_seconds{worker="a"}' not in told


def test_a_workers_state_is_as_old_as_the_last_word_of_it():
    told = page(Counts(conditions=lambda: [standing("a", heard_at=97.5)]), now=100.0)

    assert 'leadsman_state_age_seconds{worker="a"} 2.5' in told


def test_models_beyond_the_most_share_one_name():
    counts = Counts()

    for number in range(MOST_MODELS + 50):
        counts.of_model(f"m{number}").requests += 1

    assert len(counts.models) == MOST_MODELS + 1
    assert counts.models[OTHER].requests == 50
