import { AsyncLocalStorage } from "node:async_hooks";

/** Runs functions one after the other, in the order in which they came. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();
  readonly #inside = new AsyncLocalStorage<{ over: boolean }>();

  /** Runs a function when those before it have ended. Within such a function it throws, since it would wait for ever. */
  run<R>(fn: () => Promise<R>): Promise<R> {
    if (this.#inside.getStore()?.over === false) {
      return Promise.reject(new Error("a transaction cannot begin within another one of the same store"));
    }
    const turn = { over: false };
    const result = this.#last.then(() => this.#inside.run(turn, fn)).finally(() => (turn.over = true));
    this.#last = result.catch(() => undefined);
    return result;
  }
}
