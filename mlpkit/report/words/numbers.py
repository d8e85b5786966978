"""How numbers are written in the report."""

from __future__ import annotations

from mlpkit.figures.charts import short


def score(value: float) -> str:
    """A loss with four decimals: seeds differ in the third."""
    return f"{value:.4f}".replace("-", "−")


def signed(value: float) -> str:
    """A difference of losses with its sign."""
    return f"{value:+.4f}".replace("-", "−")


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.3g} %".replace("-", "−")


def signed_percent(value: float) -> str:
    """A relative difference in percent, with its sign."""
    return f"{100 * value:+.2f} %".replace("-", "−")


def signed_points(value: float) -> str:
    """A difference that is in percent already, with its sign."""
    return f"{value:+.2f} %".replace("-", "−")


def size(value: float) -> str:
    """Bytes in MiB or GiB."""
    unit, power = ("GiB", 30) if value >= 2**30 else ("MiB", 20)
    return (
        f"{value / 2**power:.3g} {unit}"
        if value < 1000 * 2**power
        else f"{value / 2**power:.0f} {unit}"
    )


def duration(value: float) -> str:
    """Seconds as 8.3 s, 4:05 or 2:04:05."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def ratio(value: float) -> str:
    """How many times."""
    return f"{value:.2f}×"


def probability(value: float) -> str:
    """What stands behind "p"."""
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def count(value: float) -> str:
    """A whole number with its thousands marked."""
    return f"{value:,.0f}".replace("-", "−")


FORMATS = {
    "score": score,
    "signed": signed,
    "percent": percent,
    "signed_percent": signed_percent,
    "signed_points": signed_points,
    "size": size,
    "duration": duration,
    "ratio": ratio,
    "p": probability,
    "short": short,
    "count": count,
}
