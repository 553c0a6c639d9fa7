"""Models of a kernel's time: the TSM2 paper's, and ours, by which searches order configurations.

They plan searches. An exported module predicts by `runtime/choice/predict.py`.
"""
