import assert from "node:assert/strict";
import { test } from "node:test";

import { Chain } from "../dist/chain.js";

/** A chain that is watched and was read up to a number. */
function watched(upTo: number): Chain {
  const chain = new Chain(0);
  chain.watched = true;
  chain.read(0, upTo);
  return chain;
}

/** All orders of some numbers. */
function orders(numbers: number[]): number[][] {
  if (numbers.length === 0) return [[]];
  return numbers.flatMap((first) => orders(numbers.filter((n) => n !== first)).map((rest) => [first, ...rest]));
}

test("in any order, a chain is open while the one before a delivery is missing", () => {
  const numbers = [1, 2, 4, 5, 9, 10];
  for (const order of orders([1, 2, 3, 4, 5])) {
    const chain = watched(1);
    const came = new Set([0]);
    for (const at of order) {
      chain.delivered(numbers[at]!, numbers[at - 1]!);
      came.add(at);
      const missing = [...came].some((n) => n > 0 && !came.has(n - 1));
      assert.equal(chain.highest > 0, missing, `${[...came]}`);
      assert.equal(chain.missing(10), missing, `${[...came]}`);
    }
    chain.delivered(11, 10);
    assert.equal(chain.highest, 0);
  }
});

test("what the feed has answers the questions about the events before", () => {
  for (const [number, previous, read, open] of [
    [7, null, 7, false],
    [7, null, 6, true],
    [7, 0, 6, true],
    [7, 5, 4, true],
    [7, 5, 5, false],
    [7, 5, 9, false],
    [null, null, 0, false],
  ] as [number | null, number | null, number, boolean][]) {
    const chain = watched(0);
    chain.delivered(number, previous);
    chain.read(0, read);
    assert.equal(chain.highest > 0, open, `${number} after ${previous}, read up to ${read}`);
  }
});

test("only a watched chain keeps deliveries, and not too many", () => {
  const chain = new Chain(0);
  chain.delivered(7, 5);
  assert.equal(chain.highest, 0);
  chain.watched = true;
  for (let n = 0; n <= 10_000; n++) chain.delivered(2 * n + 100, 2 * n + 99);
  chain.read(0, 20_099);
  assert.equal(chain.highest, 20_100); // the one that was not kept
  chain.read(0, 20_100);
  assert.equal(chain.highest, 0);
});

test("a gap is waited for, unless it closes", async () => {
  const chain = watched(1);
  const stop = new AbortController();
  const found = chain.gap(60_000, stop.signal).then(() => "found");
  chain.delivered(3, 2);
  chain.delivered(2, 1); // late
  assert.equal(await Promise.race([found, new Promise((done) => setTimeout(done, 20, "none"))]), "none");
  chain.delivered(5, 4);
  assert.equal(await found, "found");
  await watched(1).gap(1, stop.signal); // the time is over
  const again = watched(1).gap(60_000, stop.signal);
  stop.abort();
  await again;
});

test("a delivery that comes late answers the question, also when others are asked meanwhile", () => {
  const chain = watched(1);
  chain.delivered(3, 2);
  const asked = chain.highest;
  chain.delivered(2, 1);
  chain.delivered(5, 4);
  assert.deepEqual([asked, chain.missing(asked), chain.missing(5)], [3, false, true]);
});

test("a wrong number is corrected by the next reading of the feed", () => {
  const wrong = Number.MAX_SAFE_INTEGER;
  for (const previous of [null, 1, wrong - 1]) {
    const chain = watched(1);
    chain.delivered(wrong, previous);
    chain.read(chain.reading(), 5);
    assert.equal(chain.highest, 0);
    chain.delivered(8, 7);
    assert.equal(chain.highest, 8);
  }
});
