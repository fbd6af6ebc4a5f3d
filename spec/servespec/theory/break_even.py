"""Break-even: the batch size beyond which speculation stops paying.

Theory of operation. With γ drafts, a step of the target feeds γ + 1 positions a sequence and gives
E(α, γ) tokens; a draft costs c steps of the target with one position. At batch B

    speed-up = E(α, γ) · T₁ / (T_{γ+1} + γ·c·T₁)        T_j: roofline time with j positions each

Leviathan et al. (arXiv 2211.17192, Theorem 3.8) have T_{γ+1} = T₁: true left of the ridge, where a
step has arithmetic to spare. At larger batches verification is paid for. Drafts cost what the batch
makes of a step, c·T₁; that too is a model, not a measurement.
"""

from __future__ import annotations

from fractions import Fraction

from servespec.theory.memory import Deployment, fits_model
from servespec.theory.register import Kind, theorem
from servespec.theory.roofline import Chunk, decodes, last, step_time, work
from servespec.theory.shapes import whole
from servespec.theory.speculation import check_alpha, check_cost, speedup


def verification_time(d: Deployment, batch: int, context: int, drafts: int) -> Fraction:
    """Seconds of a step with 1 + `drafts` positions for each of `batch` sequences, the first of
    which attends to `context` positions.

    Raises:
        ConfigError: the drafts reach beyond the model's context, or a size makes no sense.
    """
    whole(context, "context")
    whole(drafts, "drafts", 0)
    fits_model(d.model, "context", context + drafts)
    return step_time(d, (Chunk(context - 1, 1 + drafts, batch),))


def speedup_at(
    d: Deployment, batch: int, context: int, drafts: int, alpha: Fraction, cost: Fraction
) -> Fraction:
    """Tokens a second with so many drafts over tokens a second with none: Theorem 3.8 with the
    roofline's cost of a pass."""
    return speedup(
        alpha, drafts, cost, lambda positions: verification_time(d, batch, context, positions - 1)
    )


@theorem("ARI-4", Kind.X)
def pays(d: Deployment, batch: int, context: int, alpha: Fraction, cost: Fraction) -> bool:
    """Some number of drafts gains iff one draft does: iff T₂/T₁ < 1 + α - c.

    Time is a maximum of functions convex in γ, the expectation is concave, and at γ = 0 both are
    1 (in units of T₁): what is gained at some γ is gained at least in part by the first draft.
    """
    check_alpha(alpha), check_cost(cost)
    plain = verification_time(d, batch, context, 0)
    return verification_time(d, batch, context, 1) < (1 + alpha - cost) * plain


def last_paying_batch(d: Deployment, context: int, alpha: Fraction, cost: Fraction) -> int | None:
    """The largest batch at which some number of drafts gains; 0 if none does; None if all do: at
    long contexts decode never reaches the ridge, and has arithmetic to spare at any batch.

    T₂/T₁ never falls as the batch grows (it rises while memory bounds a plain step, and is constant
    beyond), so there is one such batch.
    """

    def gains(batch: int) -> bool:
        return batch == 0 or pays(d, batch, context, alpha, cost)

    if not gains(1):
        return 0
    if not _stops(d, context, 1 + alpha - cost):
        return None
    beyond = 2
    while gains(beyond):
        beyond *= 2
    return last(gains, beyond)


def _stops(d: Deployment, context: int, gain: Fraction) -> bool:
    """T₂/T₁ reaches the gain of one draft at some batch. Its limit is that of the cache and the
    arithmetic of one sequence, the weights being shared by ever more."""
    one, two = work(d, decodes(1, context)), work(d, (Chunk(context - 1, 2),))
    ridge = d.device.ridge
    plain = max(Fraction(one.flops), ridge * one.kv_read)
    limit = max(Fraction(two.flops), ridge * two.kv_read) / plain
    reached = one.flops > ridge * one.kv_read
    return limit > gain or (limit == gain and reached)
