"""Small systems of linear equations, by elimination. Pure."""

from collections.abc import Sequence

_NOTHING = 1e-12

Matrix = Sequence[Sequence[float]]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """The inner product."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def solve(matrix: Matrix, right: Sequence[float]) -> list[float] | None:
    """x of `matrix x = right`, with pivoting; None where the matrix is singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    scale = max(abs(value) for row in matrix for value in row)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) <= _NOTHING * scale:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for lower_row in rows[column + 1 :]:
            factor = lower_row[column] / rows[column][column]
            for index in range(column, size + 1):
                lower_row[index] -= factor * rows[column][index]
    solution = [0.0] * size
    for row in reversed(range(size)):
        solved_part = dot(rows[row][row + 1 : size], solution[row + 1 :])
        solution[row] = (rows[row][size] - solved_part) / rows[row][row]
    return solution


def inverse(matrix: Matrix) -> list[list[float]]:
    """The inverse of a symmetric positive definite matrix.

    Raises:
        ValueError: the matrix is singular.
    """
    size = len(matrix)
    columns = []
    for index in range(size):
        column = solve(matrix, [float(row == index) for row in range(size)])
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
    solution = solve(normal, [sum(x[i] * y for x, y in scaled) for i in range(width)])
    return None if solution is None else [a / b for a, b in zip(solution, lengths, strict=True)]
