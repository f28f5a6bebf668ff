"""DeepSpeed's name, for scripts that import it: from here on, in this process and in those that it
starts, `import deepspeed` and the question whether that is installed are answered by Artesian, also
where a DeepSpeed is installed. Only when asked for, in one of these ways:

    deepspeed script.py                           # with the wheel artesian-deepspeed, which asks
                                                  # for every process of its environment
    ARTESIAN_AS_DEEPSPEED=1 python script.py
    python -m artesian.run script.py
    import artesian.deepspeed                     # as the first line: of a notebook, say
"""

from artesian.deepspeed.finder import install

install()
