"""``stoker board``: a page that shows runs while they live. It only ever reads."""
