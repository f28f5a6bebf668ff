"""Stands in for DeepSpeed in scripts that import it: from now on, in this process and its children,
Artesian answers `import deepspeed` and queries whether it is installed, even if DeepSpeed is
installed. This only happens on request, in one of these ways:

    deepspeed script.py                           # with the wheel artesian-deepspeed, which
                                                  # requests it in its whole environment
    ARTESIAN_AS_DEEPSPEED=1 python script.py
    python -m artesian.run script.py
    import artesian.deepspeed                     # as the first line, for example of a notebook
"""

from artesian.deepspeed.finder import install

install()
