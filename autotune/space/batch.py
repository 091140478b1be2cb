"""The batch algebra: micro-batch x accumulation x devices = global batch, exactly. Pure.

Where completions are generated, the global batch counts completions; those that are generated
together (the generation batch) are whole groups of one prompt each, and whole micro-batches of all
devices; and either they divide the global batch, or it divides them.
"""


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def micro_batches(global_batch: int, devices: int) -> list[int]:
    """Return every micro-batch with which some accumulation count makes the global batch exact."""
    return [] if global_batch % devices else divisors(global_batch // devices)


def accumulation(global_batch: int, devices: int, micro_batch: int) -> int | None:
    """Return the accumulation count that makes the global batch exact; None where there is none."""
    per_step = micro_batch * devices
    return None if global_batch % per_step else global_batch // per_step


def generation_batches(global_batch: int, group: int) -> list[int]:
    """Return what may be generated together within an optimizer step, in whole groups; the largest
    first: it is what TRL does."""
    return [n for n in reversed(divisors(global_batch)) if n % group == 0]


TRL_ROLLOUT_BATCH = 64
"""TRL's default of `local_rollout_forward_batch_size`."""


def quarters(number: int, count: int = 2) -> list[int]:
    """Return the number, and divisors of it, each of about a quarter of the one before; beside a
    larger multiple of TRL's default that."""
    if number > TRL_ROLLOUT_BATCH and number % TRL_ROLLOUT_BATCH == 0:
        return [number, TRL_ROLLOUT_BATCH]
    halves = [number]
    while len(halves) < count and halves[-1] > 1:
        halves.append(max((d for d in divisors(number) if 4 * d <= halves[-1]), default=1))
    return halves


def generation_problem(
    generation_batch: int, *, global_batch: int, per_step: int, group: int
) -> str | None:
    """Return why so many completions cannot be generated together; None: they can.

    Args:
        per_step: micro-batch x devices.
        group: completions of one prompt.
    """
    if generation_batch % group:
        return "the completions generated together cannot be split into groups"
    if generation_batch % per_step:
        return "the completions generated together cannot be split into micro-batches"
    if global_batch % generation_batch and generation_batch % global_batch:
        return "neither the completions generated together nor the global batch divides the other"
    return None


WHITENED = 8
"""Completions of a mini-batch that TRL wants for whitening rewards."""


def update_problem(
    local_batch: int, accumulation: int, *, chunk: int, mini_batches: int, whitened: bool
) -> str | None:
    """Return why PPO cannot divide the completions of a device so; None: it can.

    Args:
        chunk: completions that are generated and scored together.
        whitened: whether rewards are.
    """
    if chunk <= local_batch and local_batch % chunk:
        return "the completions of an update cannot be split into rollout batches"
    if accumulation % mini_batches:
        return "the micro-batches of an update cannot be split into its mini-batches"
    if whitened and local_batch // mini_batches < WHITENED:
        return f"whitened rewards need mini-batches of at least {WHITENED} completions on a device"
    return None


def nearest_values(value: int, valid: list[int]) -> list[int]:
    """Return the valid values just below and just above `value`."""
    smaller = [v for v in valid if v < value]
    larger = [v for v in valid if v > value]
    return smaller[-1:] + larger[:1]


def nearest_token_batches(tokens: int, max_length: int) -> list[int]:
    """Return the token counts around `tokens` that are whole numbers of rows of `max_length`."""
    rows = tokens // max_length
    return [count * max_length for count in (rows, rows + 1) if count > 0]
