import assert from "node:assert/strict";
import { test } from "node:test";

import { parseDictionary, serializeInnerList, type InnerList } from "../dist/fields.js";

const serialized = (text: string) => serializeInnerList(parseDictionary([text]).get("a") as InnerList);

test("an inner list is serialised as it should have been written", () => {
  for (const [text, want] of [
    ["a=()", "()"],
    ["a=(  1   2 )", "(1 2)"],
    ['a=("x" "a\\"b\\\\c");created=1;tag="t"', '("x" "a\\"b\\\\c");created=1;tag="t"'],
    ["a=(x;y;z=?0 *t/x:y);b=?1", "(x;y;z=?0 *t/x:y);b"],
    ["a=(1.5 -0.25 1.000 -2 007 100.10)", "(1.5 -0.25 1.0 -2 7 100.1)"],
    ["a=(:AAECAw==: ::);p=@1659578233", "(:AAECAw==: ::);p=@1659578233"],
    ['a=(%"f%c3%bc%22 %25");p=1;q=2;p=3', '(%"f%c3%bc%22 %25");p=3;q=2'],
    ["b=1, a=(1), c;x", "(1)"],
    ["a=1,\t a=(2)", "(2)"],
  ] as const) {
    assert.equal(serialized(text), want, text);
  }
});

test("what the grammar does not have is refused", () => {
  for (const text of [
    "a=",
    "a=(",
    "a=(1",
    "a=(1 2",
    "a=(1)2",
    "a=(1,2)",
    'a=("x""y")',
    "a=((1))",
    "A=1",
    "a=1,",
    "a=1,,b=2",
    "=1",
    "a =1",
    "a= 1",
    'a="x',
    'a="\\x"',
    'a="é"',
    "a=:A:",
    "a=:AAA:",
    "a=:AA=A:",
    "a=:AAAA",
    "a=?2",
    "a=1.",
    "a=1.2345",
    "a=1234567890123.1",
    "a=1234567890123456",
    "a=--1",
    "a=-",
    "a=@1.5",
    'a=%"%C3"',
    'a=%"%c3"',
    "a;=1",
    "a;B",
    "a=(1);",
    " , a",
    `a="${"x".repeat(17000)}"`,
    "a=1\n",
  ]) {
    assert.throws(() => parseDictionary([text]), SyntaxError, text.slice(0, 40));
  }
});

test("lines are combined, and an empty field is an empty dictionary", () => {
  assert.deepEqual([...parseDictionary(["a=1", " b=2"]).keys()], ["a", "b"]);
  assert.equal(parseDictionary([]).size, 0);
  assert.equal(parseDictionary([""]).size, 0);
});

test("input of many open lists ends soon", () => {
  assert.throws(() => parseDictionary([`a=${"(".repeat(16000)}`]), SyntaxError);
  assert.throws(() => parseDictionary([`a="${"\\".repeat(16001)}`]), SyntaxError);
});
