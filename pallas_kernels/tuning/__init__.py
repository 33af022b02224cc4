"""Measured tiles: where they are kept, how a call finds its own, how they are searched for.

encoding    problems and configs as JSON
table       entries, and files of them
lookup      the user's cache, then the packaged tables/*.json
candidates  what is worth measuring
search      measures it, and can be stopped and resumed
state       what a search has measured so far
"""
