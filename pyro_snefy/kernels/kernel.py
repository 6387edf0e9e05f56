r"""Kernels of neurons, and the one primitive: the normaliser for a batch of biases."""

__all__ = ["Kernel", "Pairwise", "Separable", "in_chunks"]

from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor

from ..numerics.forms import Blocks, Features, Form
from ..numerics.linalg import broadcast_shapes
from ..numerics.recompute import recomputed

# Entries of kernel matrices that are held at once when every row has a matrix of its own.
_CHUNK = 2**20
# Entries of features that are held at once when all rows share their matrices.
_ROWS = 2**18
_NO_BATCH = Size()
# Stands for zero where numbers are divided by the largest of them.
_LEAST = 1e-300


class Kernel:
    r"""The kernel of neurons under a base measure.

    .. math:: K_{ij}(b) = \int \sigma(w_i \cdot t + b_i) \sigma(w_j \cdot t + b_j) \, d\mu

    A kernel belongs to an activation, a base and weights, and is a function of the biases. Its
    own tensors are in float64.

    Example:
        >>> from pyro_snefy.activations import Exp
        >>> from pyro_snefy.bases import Gaussian
        >>> from pyro_snefy.numerics.forms import Readout
        >>> from pyro_snefy.kernels import kernel
        >>> base = Gaussian(torch.zeros(2), torch.ones(2))
        >>> exponential = kernel(Exp(), base, torch.zeros(3, 2))
        >>> exponential.log_normalizer(Readout(torch.ones(1, 3)), torch.zeros(3)).exp()
        tensor(9.0000, dtype=torch.float64)
    """

    takes_float32: bool = False  # whether rows of biases may be in float32
    # Whether the matrix of one bias has a Cholesky factor in spite of rounding, so that a readout
    # for each row may be in float32.
    has_factor: bool = False
    shift: Tensor | None = None  # what is added to the biases before anything else

    def _shifted(self, bias: Tensor) -> Tensor:
        return bias if self.shift is None else bias + self.shift.to(bias.dtype)

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        r"""The logarithm of :math:`Z = \sum_{ij} M_{ij} K_{ij}(b)` for a batch of biases.

        Arguments:
            form: The quadratic form :math:`M`.
            bias: The biases, with shape :math:`(*, n)`.

        Returns:
            The values, with shape :math:`(*)`.
        """
        raise NotImplementedError

    def _log_normalizer_of_one(self, form: Form, bias: Tensor, unit: float) -> Tensor:
        # One bias has one matrix, however many forms there are.
        log_scale, matrix = self.matrix(bias)
        features = Features(log_scale, (None,))
        if not unit or form.matrix.dtype == torch.float64:
            return form.log_trace(features, {(0, 0): matrix})
        # The errors are relative to the largest entry.
        largest = matrix.detach().diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=_LEAST)
        block = matrix / largest[..., None, None]
        return form.log_trace(features, {(0, 0): block}, unit) + largest.log()

    def matrix(self, bias: Tensor) -> tuple[Tensor | None, Tensor]:
        r"""The matrix itself, :math:`K_{ij} = e^{\ell_i + \ell_j} C_{ij}`.

        Arguments:
            bias: The biases, with shape :math:`(*, n)`.

        Returns:
            :math:`\ell`, with shape :math:`(*, n)`, or None for zeros, and :math:`C`, with shape
            :math:`(*, n, n)`.
        """
        raise NotImplementedError

    def rounding(self, bias: Tensor) -> Tensor:
        r"""Absolute errors of the :math:`K_{ii}` over eps, where these are more than relative ones.

        Arguments:
            bias: The biases, with shape :math:`(*, n)`.
        """
        return torch.zeros_like(bias)

    def log_diagonal(self, bias: Tensor) -> Tensor:
        r"""The logarithms of :math:`K_{ii}`, with shape :math:`(*, n)`.

        Arguments:
            bias: The biases, with shape :math:`(*, n)`.
        """
        log_scale, matrix = self.matrix(bias)
        log_norm = matrix.diagonal(dim1=-2, dim2=-1).clamp(min=0).log()
        return log_norm if log_scale is None else log_norm + 2 * log_scale


class Separable(Kernel):
    r"""A kernel that is a bilinear form in functions of single biases.

    .. math:: K_{ij}(b) = e^{\ell_i + \ell_j} \sum_{pq} \phi_p(b_i) G^{pq}_{ij} \phi_q(b_j)
        + \sum_k \rho_k(b_i) \rho_k(b_j)

    The normaliser of a batch of biases is a few matrix products.

    Arguments:
        blocks: The matrices :math:`G^{pq}`, :math:`p \leq q`, each broadcastable to
            :math:`(*, n, n)`.
        features: A function from shifted biases to :math:`\ell`, :math:`\phi` and :math:`\rho`, the
            :class:`~pyro_snefy.numerics.forms.Features`.
        shift: What is added to the biases before, with shape :math:`(*, n)`, or None for zeros.
        unit: The blocks have errors of at most eps times this number, beside errors relative to
            their diagonals. Zero, as a float, says that there are no other errors.
        takes_float32: Whether rows of biases may be in float32, and so may their features. There
            are no features of ones then.
        errors: For each :math:`p`, the absolute error of :math:`G^{pp}` over eps, if it is a
            difference of larger numbers, or zero. Empty if all blocks have relative errors of eps.

    Example:
        >>> linear = Separable({(0, 0): torch.ones(2, 2)}, lambda b: Features(None, (b,)))
        >>> linear.matrix(torch.tensor([1.0, 2.0]))[1]
        tensor([[1., 2.],
                [2., 4.]])
    """

    def __init__(
        self,
        blocks: Blocks,
        features: Callable[[Tensor], Features],
        shift: Tensor | None = None,
        unit: Tensor | float = 1.0,
        takes_float32: bool = False,
        errors: Sequence[Tensor | float] = (),
    ) -> None:
        self.blocks = blocks
        self.features = features
        self.shift = shift
        self.takes_float32 = self.has_factor = takes_float32
        self.unit, self.exact = unit, isinstance(unit, float) and not unit
        self.errors = errors

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        if bias.dim() == 1:
            return self._log_normalizer_of_one(form, bias, 0.0 if self.exact else 1.0)
        bias = self._shifted(bias)

        def log_trace(rows: Tensor) -> Tensor:
            return form.log_trace(self.features(rows), self.blocks, self.unit)

        batches = (block.shape[:-2] for block in self.blocks.values())
        batch = broadcast_shapes(form.matrix.shape[:-2], *batches)
        return in_chunks(log_trace, bias, batch, _ROWS // bias.shape[-1])

    def matrix(self, bias: Tensor) -> tuple[Tensor | None, Tensor]:
        log_scale, values, direct, _ = self.features(self._shifted(bias))
        terms = [] if direct is None else [_outer(direct)]
        for (p, q), block in self.blocks.items():
            left, right = values[p], values[q]
            term = block if left is None else block * left.unsqueeze(-1)
            term = term if right is None else term * right.unsqueeze(-2)
            terms.append(term if p == q else term + term.mT)
        return log_scale, sum(terms[1:], terms[0])

    def rounding(self, bias: Tensor) -> Tensor:
        total = super().rounding(bias)
        values = self.features(self._shifted(bias)).values if self.errors else ()
        for error, value in zip(self.errors, values, strict=True):
            total = total + (error if value is None else error * value.square())
        return total

    def log_diagonal(self, bias: Tensor) -> Tensor:
        log_scale, values, direct, _ = self.features(self._shifted(bias))
        total = bias.new_zeros(()) if direct is None else direct.square().sum(0)
        for (p, q), block in self.blocks.items():
            term = block.diagonal(dim1=-2, dim2=-1)
            for value in (values[p], values[q]):
                term = term if value is None else term * value
            total = total + (term if p == q else 2 * term)
        log_norm = total.clamp(min=0).log()
        return log_norm if log_scale is None else log_norm + 2 * log_scale


def _outer(direct: Tensor) -> Tensor:
    rows = direct.movedim(0, -2)  # (*, r, n)
    return rows.mT @ rows


class Pairwise(Kernel):
    r"""A kernel that is evaluated pair by pair for each bias.

    Rows are evaluated in chunks, and again in the backward pass, so that memory is bounded.

    Arguments:
        evaluate: A function from biases, with shape :math:`(*, n)`, to matrices, with shape
            :math:`(*, n, n)`.
        batch_shape: The batch shape of what the function closes over, such as that of weights.
        shift: What is added to the biases before, with shape :math:`(*, n)`, or None for zeros.
        has_factor: Whether errors are relative to the diagonal, :math:`\sqrt{K_{ii} K_{jj}}`, so
            that a matrix has a Cholesky factor in spite of them.

    Example:
        >>> products = Pairwise(lambda bias: bias.unsqueeze(-1) * bias.unsqueeze(-2))
        >>> products.matrix(torch.tensor([1.0, 2.0]))[1]
        tensor([[1., 2.],
                [2., 4.]])
    """

    def __init__(
        self,
        evaluate: Callable[[Tensor], Tensor],
        batch_shape: Size = _NO_BATCH,
        shift: Tensor | None = None,
        has_factor: bool = False,
    ) -> None:
        self.evaluate = evaluate
        self.batch_shape = batch_shape
        self.shift = shift
        self.has_factor = has_factor

    def log_normalizer(self, form: Form, bias: Tensor) -> Tensor:
        if bias.dim() == 1:
            return self._log_normalizer_of_one(form, bias, 0.0)

        def log_trace(rows: Tensor) -> Tensor:
            return form.log_trace(Features(None, (None,)), {(0, 0): self.evaluate(rows)})

        bias = self._shifted(bias)
        batch = broadcast_shapes(self.batch_shape, form.matrix.shape[:-2])
        return _in_pieces(log_trace, bias, batch, _CHUNK // bias.shape[-1] ** 2)

    def matrix(self, bias: Tensor) -> tuple[None, Tensor]:
        return None, self.evaluate(self._shifted(bias))


def in_chunks(
    function: Callable[[Tensor], Tensor], rows: Tensor, batch_shape: Size, count: int
) -> Tensor:
    r"""Evaluates a function of rows on some at a time, and again in the backward pass.

    Arguments:
        function: A function from rows, with shape :math:`(*, n)`, to values, with shape
            :math:`(*)`.
        rows: The rows, with shape :math:`(*, \text{batch}, n)`.
        batch_shape: The batch shape of what the function closes over. It is never split.
        count: How many rows to evaluate at a time.
    """
    free = rows.dim() - 1 - len(batch_shape)
    if free < 1:
        return function(rows)
    own = broadcast_shapes(rows.shape[free:-1], batch_shape)
    size = max(1, count // max(1, own.numel()))
    leading = rows.shape[:free]
    if leading.numel() <= size:
        return function(rows)
    chunks = rows.reshape(-1, *rows.shape[free:]).split(size)
    values = [recomputed(function, chunk) for chunk in chunks]
    return torch.cat(values).reshape(leading + own)


def _in_pieces(
    function: Callable[[Tensor], Tensor], rows: Tensor, batch_shape: Size, count: int
) -> Tensor:
    # As `in_chunks`; rows of a batch that share what the function closes over, along a dimension
    # of length one in the batch shape, are split there, too.
    free = rows.dim() - 1 - len(batch_shape)
    if free > 0:
        return in_chunks(function, rows, batch_shape, count)
    own = broadcast_shapes(rows.shape[:-1], batch_shape)
    shared = (k for k in range(-free, len(own)) if batch_shape[k] == 1 and own[k] > 1)
    axis = max(shared, key=lambda k: own[k], default=None)
    if axis is None or own.numel() <= count:
        return function(rows)
    pieces = rows.split(max(1, count * own[axis] // own.numel()), dim=axis + free)
    return torch.cat([recomputed(function, piece) for piece in pieces], dim=axis)
