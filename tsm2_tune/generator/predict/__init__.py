"""Models of a kernel's time, for planning searches: `paper_model.py` is the TSM2 paper's, `expected_time.py` our own.

Searches order configurations by `expected_time.py`. Exported modules use another model, `runtime/choice/predict.py`.
"""
