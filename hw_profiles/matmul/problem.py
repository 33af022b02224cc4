"""What is to be computed: sizes, dtypes and epilogue, without arrays."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.activations import check_activation
from hw_profiles.arguments import as_int, whole_field


@dataclasses.dataclass(frozen=True)
class MatmulProblem:
  """C[b] = epilogue(A[b]·B[b] + bias), A of m x k and B of k x n, b < batch.

  Attributes:
    m: Rows of A and C.
    k: Columns of A, rows of B.
    n: Columns of B and C.
    dtype: Operand dtype by name, for example "bfloat16".
    out_dtype: Result dtype; None: `dtype`.
    bias: Whether a row vector is added to each row of C before the activation.
    activation: None or one of `hw_profiles.ACTIVATIONS`.
    batch: Products.
    shared_b: True: all products of the batch read one B.
    shared_a: True: all products of the batch read one A.
    products: Matrices B of one shape that A is multiplied with; the epilogue
      makes one C of the products. 2 is the gated matmul.
    scaled: Whether rows and columns of the sum are scaled, as quantised
      operands' are.
  """

  m: int
  k: int
  n: int
  dtype: str = "bfloat16"
  out_dtype: str | None = None
  bias: bool = False
  activation: str | None = None
  batch: int = 1
  shared_b: bool = False
  shared_a: bool = False
  products: int = 1
  scaled: bool = False

  def __post_init__(self) -> None:
    for name in ("m", "k", "n", "batch"):
      whole_field(self, name, 0)
    object.__setattr__(self, "products", as_int(self.products))
    if type(self.products) is not int or self.products not in (1, 2):
      raise ValueError(f"MatmulProblem.products={self.products!r}: expected 1 or 2")
    for name in ("bias", "shared_a", "shared_b", "scaled"):
      if not isinstance(getattr(self, name), bool):
        raise ValueError(f"MatmulProblem.{name}={getattr(self, name)!r}: expected True or False")
    dtypes.size_bytes(self.dtype)
    if self.out_dtype is not None:
      dtypes.size_bytes(self.out_dtype, name="out_dtype")
    check_activation("MatmulProblem.activation", self.activation)

  @property
  def op_name(self) -> str:
    """ "matmul", "gated_matmul" of two products or "quantized_matmul" with scales."""
    if self.products > 1:
      return "gated_matmul"
    return "quantized_matmul" if self.scaled else "matmul"

  @property
  def result_dtype(self) -> str:
    """The dtype C is stored in."""
    return self.dtype if self.out_dtype is None else self.out_dtype

  @property
  def is_empty(self) -> bool:
    """Whether there is nothing to multiply: a size, or the batch, is 0."""
    return 0 in (self.m, self.k, self.n, self.batch)

  @property
  def flops(self) -> int:
    """2·batch·products·m·n·k: a multiply and an add for each term."""
    return 2 * self.batch * self.products * self.m * self.n * self.k

  @property
  def once_through_bytes(self) -> int:
    """Bytes that any program must move: each operand read once, C written once."""
    size = dtypes.size_bytes(self.dtype)
    a_copies = min(self.batch, 1) if self.shared_a else self.batch
    b_copies = min(self.batch, 1) if self.shared_b else self.batch
    return (
      a_copies * self.m * self.k * size
      + b_copies * self.products * self.k * self.n * size
      + self.batch * self.m * self.n * dtypes.size_bytes(self.result_dtype)
    )
