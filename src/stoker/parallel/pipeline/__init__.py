"""Pipeline parallelism: split a model into stages on several processes."""
