"""`meshctl doctor`: what a run would find here, and what would stop or hurt it.

A job that does not start, or dies hours later, often does so for a reason that could have been seen: 64 MiB of shared
memory, a store that refuses a password, a proxy between two pods. Here everything that a run would look at is looked
at and shown, with where it comes from, and checks say what may go wrong and what to do. `reading`, `cgroups`,
`detected`, `addresses` and `store` look; `findings`, `machine`, `resources` and `surroundings` decide, and touch
nothing; `environment` shows what a worker would be told; `look` goes from one to the next, `document` puts all that
into one object and `words` into text.
"""

from __future__ import annotations

from launcher.doctor.document import examine
from launcher.doctor.look import ExaminationRequest
from launcher.doctor.words import render_text

__all__ = ["ExaminationRequest", "examine", "render_text"]
