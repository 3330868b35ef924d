"""The examples of the README are what the library has."""

from __future__ import annotations

import ast
import re
import tomllib
import unittest
from pathlib import Path

import spendhook

ROOT = Path(__file__).resolve().parents[1]


class ReadmeTest(unittest.TestCase):
    def test_the_examples_use_names_that_exist(self) -> None:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        trees = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
        names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= set(re.findall(r"\b[a-z]+_(?:app|view)\b", text))
        self.assertEqual(len(trees), 3)
        used = {name for name in names if name[:1].isupper() or "_" in name} - {
            "Decimal", "Server", "ThreadingMixIn", "WSGIServer", "client_id", "client_secret", "daemon_threads", "make_server", "paid_at",
        }
        self.assertEqual(used - set(spendhook.__all__), set())

    def test_everything_public_is_documented(self) -> None:
        for name in spendhook.__all__:
            value = getattr(spendhook, name)
            if name[0].isupper() and isinstance(value, type):
                members = [
                    member for key, member in vars(value).items() if not key.startswith("_") and callable(member)
                ]
                for item in (value, *members):
                    self.assertTrue(item.__doc__, f"{name}: {item}")

    def test_the_version(self) -> None:
        with (ROOT / "pyproject.toml").open("rb") as file:
            self.assertEqual(tomllib.load(file)["project"]["version"], spendhook.__version__)


if __name__ == "__main__":
    unittest.main()
