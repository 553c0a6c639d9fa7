"""Models of a kernel's time, for planning searches: the TSM2 paper's model and our own.

`paper_model.py` contains the paper's model. `expected_time.py` contains our own, by which searches order
configurations. The core has another model, of measured kernels at other shapes: `core/predict.c`.
"""
