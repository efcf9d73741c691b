"""Pipeline parallelism: a model as stages on several ranks."""
