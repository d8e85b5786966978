"""The section on experts as part of the page, and as files beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from mlpkit.report.mixtures.findings import Range
from mlpkit.report.mixtures.section import Figure, MixtureSection, MixtureVariant, Table
from mlpkit.report.mixtures.words import SENTENCES, WORDS
from mlpkit.report.records import Statement
from mlpkit.report.spoken import in_both
from mlpkit.report.words import LANGUAGES, Writer, fill

PERCENT = ("max_violation_share", "dropped_share", "unrouted_share", "explained_share")
COUNTS = ("seed", "layer", "expert", "dead_experts")


class Teller(Writer):
    """Fills the sentences: a range is "low to high", or one number where both look alike."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value as its sentence wants it."""
        if format_spec == "tiny":
            return f"{value:.0e}"
        if not isinstance(value, Range):
            return super().format_field(value, format_spec)
        low, high = (super(Teller, self).format_field(end, format_spec) for end in value)
        between = " 到 " if self.lang == "zh" else " to "
        return low if low == high else f"{low}{between}{high}"


def section_markup(section: MixtureSection) -> Markup:
    """The section, in both languages.

    Args:
        section: What it says and shows.
    """
    parts = [Markup('<p class="note">{}</p>').format(_word("mixture_note", tokens=section.tokens))]
    if section.warnings:
        lines = [Markup("<li>{}</li>").format(said(statement)) for statement in section.warnings]
        parts.append(Markup('<ul class="warnings">{}</ul>').format(Markup("").join(lines)))
    if section.figures:
        parts.append(Markup("<h3>{}</h3>").format(_word("routing")))
        parts.append(_charts(section.figures))
    several = len(section.variants) > 1
    parts += [_variant(variant, folded=several) for variant in section.variants]
    return Markup("\n").join(parts)


def section_files(section: MixtureSection, *, language: str = "en") -> dict[str, str]:
    """Figures and tables as files: the path below the report's folder to its text.

    Args:
        section: What it shows.
        language: Of the figures, "en" or "zh".
    """
    figures = [*section.figures, *(f for variant in section.variants for f in variant.figures)]
    files = {f"figures/{f.name}.svg": f.draw(langs=(language,)).file() for f in figures}
    for name in ("health", "tokens"):
        found = [(v.name, t) for v in section.variants for t in v.tables if t.name == name]
        if found:
            files[f"tables/experts-{name}.csv"] = _csv(found)
    return files


def said(statement: Statement) -> Markup:
    """A statement about experts in both languages."""
    return in_both({lang: sentence(statement, lang) for lang in LANGUAGES})


def sentence(statement: Statement, lang: str) -> str:
    """A statement about experts in words.

    Args:
        statement: What to say.
        lang: "en" or "zh".
    """
    values = {key: _in(value, lang) for key, value in statement.values.items()}
    return Teller(lang).vformat(SENTENCES[statement.key][LANGUAGES.index(lang)], (), values)


def _variant(variant: MixtureVariant, *, folded: bool) -> Markup:
    lines = [Markup("<li>{}</li>").format(said(statement)) for statement in variant.statements]
    body = [
        Markup("<ul>{}</ul>").format(Markup("").join(lines)),
        _charts(variant.figures),
        *(_table(table, variant) for table in variant.tables),
    ]
    if not folded:
        return Markup("\n").join(body)
    heading = Markup("<summary>{}</summary>\n").format(variant.name)
    return Markup("<details>{}{}</details>").format(heading, Markup("\n").join(body))


def _charts(figures: Sequence[Figure]) -> Markup:
    found = []
    for figure in figures:
        chart = figure.draw(langs=LANGUAGES)
        caption = in_both(dict(chart.spoken(chart.title)))
        plate = Markup("<figure><figcaption>{}</figcaption>{}</figure>")
        found.append(plate.format(caption, Markup(chart.inline())))
    return Markup('<div class="charts">{}</div>').format(Markup("").join(found))


def _table(table: Table, variant: MixtureVariant) -> Markup:
    heads = [Markup("<th{}>{}</th>").format(_kind(key), _word(key)) for key in table.columns]
    rows = []
    for row in table.rows:
        shown = (_cell(key, value) for key, value in zip(table.columns, row, strict=True))
        rows.append(Markup("<tr>{}</tr>").format(Markup("").join(shown)))
    return Markup(
        '<h3>{}</h3><div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format(_word(table.name, seed=variant.seed), Markup("").join(heads), Markup("\n").join(rows))


def _cell(key: str, value: Any) -> Markup:
    shown = in_both(dict(value)) if isinstance(value, Mapping) else written(key, value)
    return Markup("<td{}>{}</td>").format(_kind(key), shown)


def _kind(key: str) -> Markup:
    return Markup(' class="text"') if key in ("categories", "top_tokens") else Markup("")


def written(key: str, value: Any) -> str:
    """A value of a table for reading: three decimals, shares in percent, a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, str) or key in COUNTS:
        return str(value)
    if key in PERCENT:
        return f"{100 * value:.1f} %"
    return f"{value:.1e}" if key.startswith("gradient") and 0 < value < 1e-3 else f"{value:.3f}"


def _csv(found: Sequence[tuple[str, Table]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("variant", *found[0][1].columns))
    for name, table in found:
        for row in table.rows:
            values = (v["en"] if isinstance(v, Mapping) else v for v in row)
            writer.writerow((name, *("" if v is None else v for v in values)))
    return text.getvalue()


def _word(key: str, **values: Any) -> Markup:
    spoken = {lang: fill(WORDS[key][LANGUAGES.index(lang)], values, lang) for lang in LANGUAGES}
    return in_both(spoken)


def _in(value: Any, lang: str) -> Any:
    return value[lang] if isinstance(value, Mapping) else value
