"""Named worlds: the seeds' noise, and the dynamics under which keeping or switching really matters."""

from __future__ import annotations

from typing import Final

from strata.learning.worlds.settings import WorldSettings

PRESETS: Final = {
    # The seeds: bandwidth ±30 % and latency ±20 %, drawn anew at every step.
    "seed30": WorldSettings(regimes=False, noise_sigma=0.0, bandwidth_half_width=0.3, latency_half_width=0.2),
    "load20": WorldSettings(regimes=False, noise_sigma=0.0, load_half_width=0.2),
    "regimes": WorldSettings(),
    "precursor": WorldSettings(precursor_share=0.75),
    "diurnal": WorldSettings(diurnal_amplitude=0.4),
    "stale": WorldSettings(observed_sigma=0.25, stale_steps=1, missing_share=0.02),
    "outage": WorldSettings(outages_per_day=1.0),
    "multijob": WorldSettings(slots=4, jobs_per_hour=0.5, background_share=0.15, load_half_width=0.1),
}
