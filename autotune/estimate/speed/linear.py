"""Small systems of linear equations, by elimination. Pure."""

from collections.abc import Sequence

_NOTHING = 1e-12

Matrix = Sequence[Sequence[float]]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """The inner product."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def solved(matrix: Matrix, right: Sequence[float]) -> list[float] | None:
    """x of `matrix x = right`, with pivoting; None where the matrix is singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    scale = max(abs(value) for row in matrix for value in row)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) <= _NOTHING * scale:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in rows[column + 1 :]:
            factor = below[column] / rows[column][column]
            for index in range(column, size + 1):
                below[index] -= factor * rows[column][index]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = dot(rows[row][row + 1 : size], found[row + 1 :])
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found


def inverted(matrix: Matrix) -> list[list[float]]:
    """The inverse of a symmetric positive definite matrix.

    Raises:
        ValueError: the matrix is singular.
    """
    size = len(matrix)
    columns = []
    for index in range(size):
        column = solved(matrix, [float(row == index) for row in range(size)])
        if column is None:
            raise ValueError("the matrix is singular")
        columns.append(column)
    return columns


def least_squares(points: Sequence[tuple[Sequence[float], float]]) -> list[float] | None:
    """c that minimises the sum of `(c . x - y)^2` over points (x, y); None: not determined."""
    width = len(points[0][0])
    lengths = [max(abs(x[n]) for x, _ in points) for n in range(width)]
    if not all(lengths):
        return None
    scaled = [([a / b for a, b in zip(x, lengths, strict=True)], y) for x, y in points]
    normal = [[sum(x[i] * x[j] for x, _ in scaled) for j in range(width)] for i in range(width)]
    found = solved(normal, [sum(x[i] * y for x, y in scaled) for i in range(width)])
    return None if found is None else [a / b for a, b in zip(found, lengths, strict=True)]
