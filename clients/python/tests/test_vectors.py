"""All libraries of Spendhook verify the same messages."""

from __future__ import annotations

import base64
import json
import unittest
from typing import Any

from spendhook import InvalidMessage, Request, Verifier
from support import VECTORS, Server, needs, reply


@needs("cryptography")
class VectorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with VECTORS.open(encoding="utf-8") as file:
            vectors = json.load(file)
        cls.now, cls.cases = vectors["now"], vectors["cases"]

        def answer(_: str, path: str, *__: Any) -> tuple[int, dict[str, str], bytes]:
            return reply(cls.cases[int(path.removeprefix("/"))]["keys"])

        cls.server = Server(answer)
        cls.addClassCleanup(cls.server.close)

    def test_each_message_is_accepted_or_refused_as_it_must(self) -> None:
        self.assertGreater(len(self.cases), 100)
        for index, case in enumerate(self.cases):
            with self.subTest(case["name"]):
                self.assertEqual(self.verify(index, case), case["valid"])

    def verify(self, index: int, case: dict[str, Any]) -> bool:
        verifier = Verifier(
            secrets=case["secrets"] or (),
            keys_url=f"{self.server.url}/{index}" if case["keys"] is not None else None,
            origin=case["origin"] or None,
            now=lambda: self.now,
        )
        try:
            verifier.verify(Request(case["method"], case["url"], case["headers"], base64.b64decode(case["body"])))
        except InvalidMessage:
            return False
        return True


if __name__ == "__main__":
    unittest.main()
