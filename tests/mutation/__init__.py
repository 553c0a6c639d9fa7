"""The mutation test: what verification says of thousands of small changes to rendered kernels.

    python -m tests.mutation --device 0,1 --count 2500
    python -m tests.mutation --count 2500 --resume

On GPUs a mutant takes seconds, on the host up to minutes; but a host tells races and places past arrays that a GPU
lets pass. So the second command tries there what the first one left.

`subjects` renders the texts, `tokens` reads them, `operators`, `structure` and `numbers` change them, `sample`
chooses, `trial` and `on_gpu` compile and verify, `arguments` says which changes are none, `report` counts.
"""
