"""Models of a kernel's time, for planning searches: the TSM2 paper's model and our own.

`paper_model.py` contains the paper's model. `expected_time.py` contains our own, by which searches order
configurations. Exported modules use another model, `runtime/choice/predict.py`.
"""
