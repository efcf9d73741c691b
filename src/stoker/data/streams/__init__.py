"""Streams: data that is read from files in an order that is computed, not remembered.

files.py      list files and read ranges of their bytes
remote.py     the same in an object store
formats.py    JSON lines and text: scan a file into blocks, read blocks
parquet.py    the same for Parquet
tar.py        the same for WebDataset shards
index.py      the blocks of all files, cached and verified
order.py      the two-level shuffle: blocks, then records within a window
sources.py    the records of files and of Hugging Face datasets, by position
readers.py    functions applied to records, and mixtures
cursor.py     packing, batches, and the position of one process in them
stream.py     what users see
pipeline.py   a stream as a config describes it
"""
