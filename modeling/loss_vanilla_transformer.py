"""Label-smoothed cross-entropy over the vocabulary, in blocks that never hold the logits of all tokens.

Ships to the Hub beside the weights; imports torch alone.
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# Shapes: M tokens (sentences x positions), K of them kept, C of one block, R of one slice, D d_model, N vocabulary.

# Logits of one block, 64 MiB in bfloat16: matrix products want many tokens, since each reads the whole vocabulary
# matrix and adds to its whole gradient. Forward and backward of 1,024 tokens, d_model 512, vocabulary 37,000, on two
# CPU cores in bfloat16: 2.4 s in blocks of 2^20, 0.93 of 2^22, 0.57 of 2^24, 0.53 of 2^25.
BLOCK_LOGITS = 1 << 25
# Logits of one slice of a block, 4 MiB in float32: they stay in cache from one element-wise pass to the next.
SLICE_LOGITS = 1 << 20
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
    return _BlockwiseCrossEntropy.apply(*tensors, labels_M, label_smoothing, smoothing_over)


class _BlockwiseCrossEntropy(torch.autograd.Function):
    """Computes the gradients together with the loss, block by block, so that no logits outlive their block."""

    @staticmethod
    def forward(ctx, hidden_MD, weight_ND, bias_N, labels_M, label_smoothing, smoothing_over):
        kept_M = labels_M.ne(IGNORED)
        everything = bool(kept_M.all())
        index_M = None if everything else kept_M.nonzero().squeeze(1)
        hidden_KD = hidden_MD if everything else hidden_MD[index_M]
        labels_K1 = (labels_M if everything else labels_M[index_M]).unsqueeze(1)

        size = weight_ND.shape[0]
        # q = rest for every token, plus `peak` more for the label.
        rest = label_smoothing / (size if smoothing_over == "vocabulary" else size - 1)
        peak = 1 - label_smoothing if smoothing_over == "vocabulary" else 1 - label_smoothing - rest

        # Matrix products run in autocast's type, as nn.Linear's would; sums and softmax in float32 at least.
        device = hidden_MD.device.type
        matmul_type = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_MD.dtype
        sum_type = torch.float64 if hidden_MD.dtype == torch.float64 else torch.float32
        hidden_KD, matrix_ND = hidden_KD.to(matmul_type), weight_ND.to(matmul_type)
        bias_N = bias_N if bias_N is None else bias_N.to(matmul_type)
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]

        loss = hidden_MD.new_zeros((), dtype=sum_type)
        grad_hidden_KD = torch.empty_like(hidden_KD) if need_hidden else None
        grad_weight_ND = torch.zeros_like(weight_ND, dtype=sum_type) if need_weight else None
        grad_bias_N = torch.zeros_like(bias_N, dtype=sum_type) if need_bias else None
        with torch.autocast(device, enabled=False):
            logits_CN = None
            for block in _even_slices(len(labels_K1), BLOCK_LOGITS // size):
                hidden_CD, labels_C1 = hidden_KD[block], labels_K1[block]
                if logits_CN is None:  # the first block is the largest; the others write over it
                    logits_CN = hidden_CD.new_empty(len(hidden_CD), size)
                logits_CN = logits_CN[: len(hidden_CD)]
                if bias_N is None:
                    torch.mm(hidden_CD, matrix_ND.T, out=logits_CN)
                else:
                    torch.addmm(bias_N, hidden_CD, matrix_ND.T, out=logits_CN)
                for rows in _even_slices(len(labels_C1), SLICE_LOGITS // size):
                    logits_RN, labels_R1 = logits_CN[rows], labels_C1[rows]
                    # softmax reads and writes the slice once; log z = max - log(p of max), which cannot underflow.
                    p_RN = logits_RN.softmax(1, dtype=sum_type)
                    log_z_R1 = logits_RN.amax(1, keepdim=True).to(sum_type) - p_RN.amax(1, keepdim=True).log()
                    # -sum(q log p) with log p = logit - log z and sum(q) = 1
                    loss += (log_z_R1 - peak * logits_RN.gather(1, labels_R1)).sum()
                    if need_hidden or need_weight or need_bias:
                        # The gradient of the logits, p - q, takes their place, without the constant part of q.
                        p_RN.scatter_add_(1, labels_R1, torch.full_like(log_z_R1, -peak))
                        if need_bias:
                            grad_bias_N += p_RN.sum(0)
                        logits_RN.copy_(p_RN)
                if need_hidden:
                    torch.mm(logits_CN, matrix_ND, out=grad_hidden_KD[block])
                if need_weight and matmul_type == sum_type:
                    grad_weight_ND.addmm_(logits_CN.T, hidden_CD)
                elif need_weight:
                    grad_weight_ND += logits_CN.T @ hidden_CD
            if rest:
                # What q's constant part gives: the logits of all tokens summed are the products of the sums.
                sum_D, matrix_sum_D = hidden_KD.sum(0, dtype=sum_type), matrix_ND.sum(0, dtype=sum_type)
                loss -= rest * (sum_D @ matrix_sum_D)
                if bias_N is not None:
                    loss -= rest * len(labels_K1) * bias_N.sum(dtype=sum_type)
                if need_hidden:
                    grad_hidden_KD -= rest * matrix_sum_D
                if need_weight:
                    grad_weight_ND -= rest * sum_D
                if need_bias:
                    grad_bias_N -= rest * len(labels_K1)

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


def _even_slices(length: int, limit: int) -> list[slice]:
    """0 to `length` in as few slices as have at most `limit` each (but at least one), near-equal, the largest first."""
    step = -(-length // max(1, -(-length // max(1, limit))))
    return [slice(start, start + step) for start in range(0, length, max(1, step))]


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
