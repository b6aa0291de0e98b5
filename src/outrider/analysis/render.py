"""Reports as text."""

from outrider.analysis.certify import Certificate, Tally
from outrider.analysis.tables import table


def certificate_lines(certificate: Certificate) -> list[str]:
    """Give the divergences, the table by domain and by setting, and the verdict."""
    lines = [
        f"{divergence.describe()} [temperature {temperature:g}, {concurrency} at a time]"
        for temperature, concurrency, divergence in certificate.divergences
    ]
    head = ["", "compared", "identical", "ties", "errors", "acc. length", "acc. rate"]
    rows = [head]
    rows += [[name, *_cells(tally)] for name, tally in certificate.domains.items()]
    rows += [
        [f"temperature {temperature:g}, {concurrency} at a time", *_cells(tally)]
        for (temperature, concurrency), tally in certificate.settings.items()
    ]
    rows.append(["all", *_cells(certificate.total)])
    lines += table(rows)
    if certificate.skipped:
        skipped = ", ".join(f"{each:g}" for each in certificate.skipped)
        lines.append(
            f"not compared: temperature {skipped}, where the rejection rule promises equal "
            "distributions, not equal tokens"
        )
    lines.append(f"verdict: {certificate.verdict}")
    return lines


def _cells(tally: Tally) -> list[str]:
    counts = tally.acceptance
    return [
        str(tally.comparisons),
        str(tally.identical),
        str(tally.ties),
        str(tally.errors),
        f"{counts.acceptance_length:.2f}",
        f"{counts.acceptance_rate:.0%}" if counts.verified else "-",
    ]
