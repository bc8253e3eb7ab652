"""Statistics of what is inside a method, on the host; each is None where it is not defined."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

TAIL = 2  # the group of the rarest third of the tasks (zipf.GROUPS)


def mean(values: NDArray | Tensor) -> float | None:
    values = values.cpu().numpy() if isinstance(values, Tensor) else values
    return float(values.mean()) if values.size else None


def auroc(score_N: NDArray, is_positive_N: NDArray) -> float | None:
    """How often a positive has a higher score than a negative; ties count half."""
    positives, negatives = int(is_positive_N.sum()), int((~is_positive_N).sum())
    if not positives or not negatives:
        return None
    rank_N = rankdata(score_N)
    return float((rank_N[is_positive_N].mean() - (positives + 1) / 2) / negatives)


def rank_correlation(x_N: NDArray, y_N: NDArray) -> float | None:
    """Spearman's."""
    x_N, y_N = rankdata(x_N), rankdata(y_N)
    if len(x_N) < 2 or not x_N.std() or not y_N.std():
        return None
    return float(np.corrcoef(x_N, y_N)[0, 1])
