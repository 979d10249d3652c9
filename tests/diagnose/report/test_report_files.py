"""Files that are written where a report is kept."""

from __future__ import annotations

import pytest
from helpers.profiles import profile

from headrace.diagnose.report import files


def test_a_report_that_cannot_be_written_is_printed_before_the_error(tmp_path, capsys):
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    with pytest.raises(OSError, match="cannot write the report"):
        files.write(profile(), no_folder / "train_1")
    assert "Accuracy and limitations" in capsys.readouterr().out
