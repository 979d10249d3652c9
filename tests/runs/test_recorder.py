"""Times at which a run saves by itself."""

from __future__ import annotations

import pytest
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.runs import recorder


@pytest.mark.parametrize(("share", "least", "most"), [(1e9, 5, 99), (1e-9, 2, 2)])
def test_saving_takes_no_more_than_its_share_of_the_time(share, least, most, tmp_path, monkeypatch):
    saved, save = [], recorder.checkpoint.save
    monkeypatch.setattr(recorder, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(recorder, "SAVE_SHARE", share)

    def note(folder, *arguments, **facts):
        saved.append(folder.name)
        save(folder, *arguments, **facts)

    class Waiting(recorder.Saver):
        """Saver that finishes each save at once: no other save begins while one is under way."""

        def submit(self, *job, **options):
            super().submit(*job, **options)
            self.wait()

    monkeypatch.setattr(recorder, "Saver", Waiting)
    monkeypatch.setattr(recorder.checkpoint, "save", note)
    hr.train("ppo", Walk(), total_steps=1000, log_folder=str(tmp_path), **TINY)
    # the first at once, since none has told yet how long it takes; the last at the end
    assert least <= saved.count("last") <= most
