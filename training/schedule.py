"""The learning rate of section 5.3: linear warm-up, then the inverse square root of the update's number."""


def lr_at(step: int, d_model: int, warmup: int, peak: float | None = None) -> float:
    """The learning rate of update `step`, counted from 1 (Vaswani et al. 2017, equation 3).

    Without `peak` the highest rate, reached at `warmup`, is the paper's (d_model * warmup) ** -0.5; with it the same
    curve is scaled to that highest rate.
    """
    if peak is None:
        peak = (d_model * warmup) ** -0.5
    return peak * min((warmup / step) ** 0.5, step / warmup)
