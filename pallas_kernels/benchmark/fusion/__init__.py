"""The fusion study: the same results from kernels that are cut, split or laid out differently.

program      what the study needs of a program: bytes, a predicted time, the call, its check
chain        the activation chain in each of its four partitions
norm         RMSNorm with a row whole or in segments
transposes   a transpose in small and large blocks; banks of its layouts
programs     all of them, by name
page         docs/fusion-study.md: python -m pallas_kernels.benchmark.fusion --write
"""
