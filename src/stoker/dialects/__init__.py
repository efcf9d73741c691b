"""Older trainers' names on Stoker: scripts for them run, by import rename or `stoker run`.

Each dialect is a translation. It stands on Stoker's public names, and nothing stands on it.
"""
