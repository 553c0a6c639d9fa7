"""The mutation test: what verification says of thousands of small changes to rendered kernels.

    python -m tests.mutation --count 2500

On the host alone: there a mutant that never ends, or writes where it must not, costs nobody their GPU.

`subjects` renders the texts, `tokens` reads them, `operators` change them, `sample` chooses, `trial` compiles and
verifies, `equivalent` says which changes are none, `__main__` counts.
"""
