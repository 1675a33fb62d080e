"""Runs one command of dev.py inside the virtual environment: ``python tools/run.py demo --iterations 3``.

Binds the pack to its one name, so that the commands' modules import each other and the pack relatively.
"""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    sys.path[0] = str(ROOT / "training")  # for bind; tools/ itself must not be importable as top-level modules
    from bind import bind

    bind()
    sys.path.pop(0)
    command, *arguments = sys.argv[1:]
    sys.argv = [f"dev.py {command}", *arguments]
    children = importlib.import_module("stepwise_grpo.tools.process")
    children.interrupt_on_signals()
    try:
        return importlib.import_module(f"stepwise_grpo.tools.{command}").main(arguments) or 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    finally:
        children.stop_all()


if __name__ == "__main__":
    sys.exit(main())
