"""A reward of one's own: the share of words that begin with a vowel."""


def score(queries, responses):
    """One finite number for each response; the queries are there for rewards that need them."""
    return [vowel_share(text.lower().split()) for text in responses]


def vowel_share(words):
    """Share of the words, 0.0 without any."""
    return sum(word[0] in "aeiou" for word in words) / max(len(words), 1)
