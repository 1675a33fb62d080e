"""``python dev.py bench page``: the command runs, and its figures mean what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwise_grpo.tools.bench_page import quantile

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_command_measures_both_and_says_whether_the_limit_is_kept(browser_path, comfyui_folder, pack_folder, tmp_path):
    environ = {**os.environ, "STEPWISE_COMFYUI": str(comfyui_folder), "PYTHONUTF8": "1"}
    arguments = ["bench", "page", "--repeat", "3", "--renderer", "classic", "--json", str(tmp_path / "page.json")]
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "run.py"), *arguments], env=environ, capture_output=True, encoding="utf-8")
    found = json.loads((tmp_path / "page.json").read_text("utf-8")) if (tmp_path / "page.json").exists() else pytest.fail(done.stdout + done.stderr)
    classic = found["classic"]
    assert found["group"] == "24 x 40" and found["repeats"] == 3 and "nodes2" not in found
    assert 0.01 < classic["p50_s"] <= classic["p95_s"] <= classic["longest_s"]
    assert classic["frames"] > 100 and 0 < classic["median_frame_ms"] <= classic["p95_frame_ms"] <= classic["longest_frame_ms"]
    assert found["failed"] == (classic["p95_s"] > 1.0) == bool(done.returncode)


def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed():
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.25, 0.5, 0.51, 1.0)] == [1.0, 2.0, 3.0, 4.0]
    assert quantile([float(i) for i in range(20)], 0.95) == 18.0
