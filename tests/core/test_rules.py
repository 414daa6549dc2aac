import pytest
from leadsman.rules import NEWEST_KNOWN, VLLM, is_known, rules_of


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.11.2", (0, 0)),
        ("0.32.0", (0, 0)),
        ("0.33.0", (0, 33)),
        ("v0.33.1.post2", (0, 33)),
        ("0.40.0", (0, 33)),
        ("1.2", (0, 33)),
        ("dev", (0, 33)),
    ],
)
def test_a_version_has_the_rules_of_the_newest_that_is_no_newer(version, since):
    assert rules_of(version) is VLLM[since]


def test_only_a_version_that_is_newer_than_any_known_is_assumed_about():
    major, minor = NEWEST_KNOWN

    assert is_known(f"{major}.{minor}.7")
    assert is_known(f"{major}.{minor - 1}.0")
    assert not is_known(f"{major}.{minor + 1}.0")


def test_every_listed_version_is_known():
    assert max(VLLM) <= NEWEST_KNOWN
