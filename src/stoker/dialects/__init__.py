"""Dialects: run scripts of older trainers by renaming their imports, or with `stoker run`.

Each dialect translates the public names of one trainer to those of Stoker. No other package
depends on the dialects.
"""
