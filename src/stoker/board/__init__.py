"""``stoker board``: a live page of your runs. It only reads."""
