from tidelog.errors import DecodeError, OffsetGoneError
from tidelog.spark.failures import find_error


def test_our_error_is_found_in_sparks_text() -> None:
    text = (
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "tidelog.errors.OffsetGoneError: offset 1 is gone; dump again\n"
        "\nSQLSTATE: 38000"
    )
    found = find_error(text)
    assert isinstance(found, OffsetGoneError)
    assert str(found) == "offset 1 is gone; dump again"


def test_the_last_error_of_a_chain_counts() -> None:
    text = "tidelog.errors.OffsetGoneError: a\n\ntidelog.errors.DecodeError: b\n\n at java"
    assert isinstance(find_error(text), DecodeError)


def test_other_errors_are_not_ours() -> None:
    assert find_error("java.lang.OutOfMemoryError: heap") is None
    assert find_error("tidelog.errors.Nonsense: x") is None
