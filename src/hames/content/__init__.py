"""Messages, finish and failure kinds, errors, encoded requests: the words that every room speaks. No behaviour, no I/O."""
