"""What is guessed of prompts, and learned of answers."""

from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.guesses import FIRST_TOKENS_PER_MEDIUM, MOST_RESPONSES, Guess, Guesses

tokens = st.integers(0, 20_000)


@given(st.lists(st.tuples(st.integers(1, 9), tokens, tokens), max_size=40))
def test_a_mean_stays_among_what_it_was_told_and_what_it_began_with(answers):
    guesses, told = Guesses(), [FIRST_TOKENS_PER_MEDIUM]
    for items, text, each in answers:
        guesses.learn("m", Guess(media=items, text_tokens=text), text + items * each)
        told.append(each)

    many = guesses.media("m", 1000) / 1000

    assert min(told) - 0.01 <= many <= max(told) + 0.01


def test_an_answer_that_reports_less_than_the_text_alone_teaches_nothing():
    guesses = Guesses()

    guesses.learn("m", Guess(media=1, text_tokens=500), 400)

    assert guesses.media("m", 1) == FIRST_TOKENS_PER_MEDIUM


def test_the_responses_that_were_gone_on_from_last_are_remembered():
    guesses = Guesses()
    for number in range(MOST_RESPONSES):
        guesses.remember(f"resp_{number}", 7)

    guesses.before("resp_0")
    guesses.remember("one more", 7)

    known = [guesses.before(name) for name in ("resp_0", "resp_1", "resp_2", "one more")]
    assert known == [7, 0, 7, 7]


def test_what_is_no_name_of_a_response_is_unknown():
    assert [Guesses().before(name) for name in (None, 7, ["resp_1"], {})] == [0, 0, 0, 0]
