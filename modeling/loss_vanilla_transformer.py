"""Label-smoothed cross-entropy over the vocabulary, in chunks that never hold the logits of all tokens.

Ships to the Hub beside the weights; imports torch alone.
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# Shapes: M tokens (sentences x positions), C tokens of one chunk, D d_model, N vocabulary.

# Logits of one chunk: about 4 MiB in float32 stay in the second-level cache of a core or two.
CHUNK_LOGITS = 1 << 20
IGNORED = -100


def smoothed_cross_entropy(
    hidden_MD: torch.Tensor,
    weight_ND: torch.Tensor,
    bias_N: torch.Tensor | None,
    labels_M: torch.Tensor,
    label_smoothing: float = 0.0,
    smoothing_over: str = "vocabulary",
) -> torch.Tensor:
    """Sum over tokens of the label-smoothed cross-entropy (section 5.4; Szegedy et al. 2015).

    The target distribution q gives the label 1 - epsilon + epsilon / N and every other token epsilon / N
    (`smoothing_over="vocabulary"`), or the label 1 - epsilon and every other token epsilon / (N - 1) ("others").
    Tokens labelled -100 are left out. Returns a float32 (or float64) scalar; gradients reach hidden, weight and bias.
    """
    # Inside the function neither grad mode nor needs_input_grad tells that no gradient will be asked for.
    tensors = (hidden_MD, weight_ND, bias_N)
    if not torch.is_grad_enabled():
        tensors = tuple(t if t is None else t.detach() for t in tensors)
    return _ChunkedCrossEntropy.apply(*tensors, labels_M, label_smoothing, smoothing_over)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients together with the loss, chunk by chunk, so that no logits outlive their chunk."""

    @staticmethod
    def forward(ctx, hidden_MD, weight_ND, bias_N, labels_M, label_smoothing, smoothing_over):
        kept_M = labels_M.ne(IGNORED)
        everything = bool(kept_M.all())
        index_M = None if everything else kept_M.nonzero().squeeze(1)
        hidden_KD = hidden_MD if everything else hidden_MD[index_M]  # K kept tokens
        labels_K = labels_M if everything else labels_M[index_M]

        size = weight_ND.shape[0]
        # q = rest for every token, plus `peak` more for the label.
        rest = label_smoothing / (size if smoothing_over == "vocabulary" else size - 1)
        peak = 1 - label_smoothing if smoothing_over == "vocabulary" else 1 - label_smoothing - rest

        # Matrix products run in autocast's type, as nn.Linear's would; sums and softmax in float32 at least.
        device = hidden_MD.device.type
        matmul_type = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_MD.dtype
        sum_type = torch.float64 if hidden_MD.dtype == torch.float64 else torch.float32
        hidden_KD, matrix_ND = hidden_KD.to(matmul_type), weight_ND.to(matmul_type)
        need_hidden, need_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]

        loss = hidden_MD.new_zeros((), dtype=sum_type)
        grad_hidden_KD = torch.empty_like(hidden_KD) if need_hidden else None
        grad_weight_ND = torch.zeros_like(weight_ND, dtype=sum_type) if need_weight else None
        grad_bias_N = torch.zeros_like(bias_N, dtype=sum_type) if ctx.needs_input_grad[2] else None
        step = max(1, CHUNK_LOGITS // size)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(labels_K), step):
                chunk = slice(start, start + step)
                hidden_CD, labels_C1 = hidden_KD[chunk], labels_K[chunk].unsqueeze(1)
                logits_CN = hidden_CD @ matrix_ND.T
                if bias_N is not None:
                    logits_CN += bias_N
                # softmax reads and writes the chunk once; log z = max - log(p of max), which cannot underflow.
                p_CN = logits_CN.softmax(1, dtype=sum_type)
                log_z_C1 = logits_CN.amax(1, keepdim=True).to(sum_type) - p_CN.amax(1, keepdim=True).log()
                # -sum(q log p) with log p = logit - log z and sum(q) = 1
                loss += (log_z_C1 - peak * logits_CN.gather(1, labels_C1)).sum()
                if rest:
                    loss -= rest * logits_CN.sum(dtype=sum_type)
                if not (need_hidden or need_weight):
                    continue
                # The gradient of the logits is p - q; q's constant part is taken off after the products, below.
                p_CN.scatter_add_(1, labels_C1, torch.full_like(log_z_C1, -peak))
                if grad_bias_N is not None:
                    grad_bias_N += p_CN.sum(0)
                grad_CN = p_CN.to(matmul_type)
                if need_hidden:
                    grad_hidden_KD[chunk] = grad_CN @ matrix_ND
                if need_weight:
                    grad_weight_ND += grad_CN.T @ hidden_CD
            if rest:
                if need_hidden:
                    grad_hidden_KD -= rest * matrix_ND.sum(0, dtype=sum_type)
                if need_weight:
                    grad_weight_ND -= rest * hidden_KD.sum(0, dtype=sum_type)
                if grad_bias_N is not None:
                    grad_bias_N -= rest * len(labels_K)

        if need_hidden and not everything:
            grad_hidden_MD = grad_hidden_KD.new_zeros(hidden_MD.shape).index_copy_(0, index_M, grad_hidden_KD)
        else:
            grad_hidden_MD = grad_hidden_KD
        ctx.save_for_backward(grad_hidden_MD, grad_weight_ND, grad_bias_N)
        ctx.types = hidden_MD.dtype, weight_ND.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss):
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        hidden_type, weight_type = ctx.types
        if grad_hidden is not None:
            grad_hidden = (grad_hidden * grad_loss.to(grad_hidden.dtype)).to(hidden_type)
        if grad_weight is not None:
            grad_weight = (grad_weight * grad_loss).to(weight_type)
        if grad_bias is not None:
            grad_bias = (grad_bias * grad_loss).to(weight_type)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _cross_entropy_of_logits(logits_MN, labels_M, label_smoothing: float, smoothing_over: str) -> torch.Tensor:
    """As `smoothed_cross_entropy`, from logits that exist."""
    size = logits_MN.shape[-1]
    if smoothing_over == "others":  # torch's smoothing gives the label its share of epsilon too
        label_smoothing = label_smoothing * size / (size - 1)
    logits_MN = logits_MN if logits_MN.dtype == torch.float64 else logits_MN.float()
    return nn.functional.cross_entropy(
        logits_MN, labels_M.to(logits_MN.device), reduction="sum", label_smoothing=label_smoothing, ignore_index=IGNORED
    )


def shifted_right(labels_BT: torch.Tensor, pad: int, start: int) -> torch.Tensor:
    """The decoder's input for labels, (B, T): `start` at each row's first label, pads where there is none before."""
    valid_BT = labels_BT.ne(IGNORED)
    before_first_BT = valid_BT.cumsum(1).eq(0)
    after_BT = valid_BT.roll(1, dims=1)
    shifted_BT = labels_BT.roll(1, dims=1).masked_fill(~after_BT, pad)
    first_BT = valid_BT & nn.functional.pad(before_first_BT[:, :-1], (1, 0), value=True)
    return shifted_BT.masked_fill(before_first_BT, pad).masked_fill(first_BT, start)


class SmoothedLoss(nn.Module):
    """The training loss of a model head: smoothed in training mode, plain cross-entropy in evaluation mode."""

    def __init__(self, label_smoothing: float, smoothing_over: str):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.smoothing_over = smoothing_over

    def forward(
        self, hidden_BTD, head: nn.Module, labels_BT, num_items: torch.Tensor | int | None, logits_BTN=None
    ) -> torch.Tensor:
        """Token sum over `num_items`, or over the batch's own token count where None; from the logits where given."""
        hidden_MD, labels_M = hidden_BTD.flatten(0, 1), labels_BT.flatten()
        label_smoothing = self.label_smoothing if self.training else 0.0
        if logits_BTN is not None:
            total = _cross_entropy_of_logits(logits_BTN.flatten(0, 1), labels_M, label_smoothing, self.smoothing_over)
        elif type(head) is nn.Linear and "forward" not in vars(head):
            total = smoothed_cross_entropy(
                hidden_MD, head.weight, head.bias, labels_M, label_smoothing, self.smoothing_over
            )
        else:  # an adapter around the matrix, or one that accelerate moves between devices: only the call knows it
            total = _cross_entropy_of_logits(head(hidden_MD), labels_M, label_smoothing, self.smoothing_over)
        if num_items is None:
            num_items = labels_BT.ne(IGNORED).sum().clamp(min=1)
        elif isinstance(num_items, torch.Tensor):
            num_items = num_items.to(total.device)
        return total / num_items
