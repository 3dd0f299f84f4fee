from slug import slug


def test_words_are_joined_by_single_hyphens():
    assert slug("Live reload, at last!") == "live-reload-at-last"


def test_a_long_title_is_cut_between_words_or_letters_but_not_after_a_hyphen():
    assert slug("one two three", limit=8) == "one-two"


def test_a_title_without_letters_has_no_name():
    assert slug("…") == ""
