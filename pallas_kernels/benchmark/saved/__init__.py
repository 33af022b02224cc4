"""`--task=report`: saved outputs and results read again, summed up in one report.

files -> read -> SavedRow -> summary (ratios, failures) -> blocks
"""
