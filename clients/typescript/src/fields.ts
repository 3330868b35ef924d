// Structured fields (RFC 9651): dictionaries are parsed, and inner lists serialised. Anything that the grammar does not
// have is a SyntaxError.

import { decodeBase64 } from "./encoding.js";

/** A value without parameters. A decimal is in thousandths, so that it is exact. */
export type Bare =
  | { kind: "integer" | "decimal" | "date"; value: number }
  | { kind: "string" | "token" | "display"; value: string }
  | { kind: "bytes"; value: Buffer }
  | { kind: "boolean"; value: boolean };

export type Params = Map<string, Bare>;

export interface Item {
  bare: Bare;
  params: Params;
}

export interface InnerList {
  items: Item[];
  params: Params;
}

export type Dictionary = Map<string, Item | InnerList>;

/** The longest field that is parsed, in characters; servers have limits of this size for all headers. */
const maxLength = 16 << 10;

/** Parses a dictionary (section 4.2.2) from the lines of a field. Of a key that is given twice the last value counts. */
export function parseDictionary(lines: readonly string[]): Dictionary {
  const text = lines.join(",");
  if (text.length > maxLength) throw new SyntaxError("the field is too long");
  return new Parser(text).dictionary();
}

const key = /[a-z*][a-z0-9_.*-]*/y;
const number = /(-?)([0-9]+)(?:\.([0-9]+))?/y;
const string = /"((?:[ !#-[\]-~]|\\["\\])*)"/y;
const token = /[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*/y;
const bytes = /:([A-Za-z0-9+/=]*):/y;
const boolean = /\?([01])/y;
const display = /%"((?:[ !#$&-~]|%[0-9a-f]{2})*)"/y;
const spaces = / */y;
const blanks = /[ \t]*/y;

/** A place in a text. Each method reads what it is named after. */
class Parser {
  #at = 0;

  constructor(readonly text: string) {}

  dictionary(): Dictionary {
    const members: Dictionary = new Map();
    this.#match(spaces);
    while (!this.#ended()) {
      const [name] = this.#match(key);
      members.set(name, this.#skip("=") ? this.#member() : { bare: { kind: "boolean", value: true }, params: this.#params() });
      this.#match(blanks);
      if (this.#ended()) break;
      this.#expect(",");
      this.#match(blanks);
      if (this.#ended()) throw new SyntaxError("a comma at the end");
    }
    return members;
  }

  #member(): Item | InnerList {
    return this.#skip("(") ? this.#innerList() : this.#item();
  }

  #innerList(): InnerList {
    const items: Item[] = [];
    for (;;) {
      this.#match(spaces);
      if (this.#skip(")")) return { items, params: this.#params() };
      items.push(this.#item());
      if (!this.#ahead(" ") && !this.#ahead(")")) throw new SyntaxError("no space between the items of a list");
    }
  }

  #item(): Item {
    return { bare: this.#bare(), params: this.#params() };
  }

  #params(): Params {
    const params: Params = new Map();
    while (this.#skip(";")) {
      this.#match(spaces);
      const [name] = this.#match(key);
      params.set(name, this.#skip("=") ? this.#bare() : { kind: "boolean", value: true });
    }
    return params;
  }

  #bare(): Bare {
    const first = this.text.charAt(this.#at);
    switch (first) {
      case '"':
        return { kind: "string", value: this.#match(string)[1]!.replace(/\\(.)/g, "$1") };
      case ":": {
        const value = decodeBase64(this.#match(bytes)[1]!);
        if (!value) throw new SyntaxError("bytes that are not base64");
        return { kind: "bytes", value };
      }
      case "?":
        return { kind: "boolean", value: this.#match(boolean)[1] === "1" };
      case "@": {
        this.#expect("@");
        const { kind, value } = this.#number();
        if (kind !== "integer") throw new SyntaxError("a date that is not an integer");
        return { kind: "date", value };
      }
      case "%":
        return { kind: "display", value: decodeDisplay(this.#match(display)[1]!) };
    }
    return /[-0-9]/.test(first) ? this.#number() : { kind: "token", value: this.#match(token)[0] };
  }

  #number(): { kind: "integer" | "decimal"; value: number } {
    const [, sign, whole, fraction] = this.#match(number);
    const factor = sign === "-" ? -1 : 1;
    if (fraction === undefined) {
      if (this.#ahead(".") || whole!.length > 15) throw new SyntaxError("an integer that is malformed or too long");
      return { kind: "integer", value: factor * Number(whole) };
    }
    if (whole!.length > 12 || fraction.length > 3) throw new SyntaxError("a decimal that is too long");
    return { kind: "decimal", value: factor * Number(whole + fraction.padEnd(3, "0")) };
  }

  #ended(): boolean {
    return this.#at === this.text.length;
  }

  #ahead(text: string): boolean {
    return this.text.startsWith(text, this.#at);
  }

  #skip(text: string): boolean {
    if (!this.#ahead(text)) return false;
    this.#at += text.length;
    return true;
  }

  #expect(text: string): void {
    if (!this.#skip(text)) throw new SyntaxError(`no ${text} at character ${this.#at}`);
  }

  #match(pattern: RegExp): RegExpExecArray {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.text);
    if (!found) throw new SyntaxError(`malformed at character ${this.#at}`);
    this.#at = pattern.lastIndex;
    return found;
  }
}

function decodeDisplay(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new SyntaxError("a display string that is not UTF-8");
  }
}

/** Serialises an inner list with its parameters (section 4.1.1.1). */
export function serializeInnerList({ items, params }: InnerList): string {
  const list = items.map((item) => serializeBare(item.bare) + serializeParams(item.params)).join(" ");
  return `(${list})${serializeParams(params)}`;
}

function serializeParams(params: Params): string {
  return [...params].map(([name, bare]) => (bare.value === true ? `;${name}` : `;${name}=${serializeBare(bare)}`)).join("");
}

function serializeBare(bare: Bare): string {
  switch (bare.kind) {
    case "integer":
      return String(bare.value);
    case "decimal":
      return serializeDecimal(bare.value);
    case "date":
      return `@${bare.value}`;
    case "string":
      return `"${bare.value.replace(/["\\]/g, "\\$&")}"`;
    case "token":
      return bare.value;
    case "display":
      return `%"${[...Buffer.from(bare.value)].map(displayByte).join("")}"`;
    case "bytes":
      return `:${bare.value.toString("base64")}:`;
    case "boolean":
      return bare.value ? "?1" : "?0";
  }
}

function serializeDecimal(thousandths: number): string {
  const digits = String(Math.abs(thousandths)).padStart(4, "0");
  const fraction = digits.slice(-3).replace(/0{1,2}$/, "");
  return `${thousandths < 0 ? "-" : ""}${digits.slice(0, -3)}.${fraction}`;
}

function displayByte(byte: number): string {
  const plain = byte >= 0x20 && byte <= 0x7e && byte !== 0x22 && byte !== 0x25;
  return plain ? String.fromCharCode(byte) : `%${byte.toString(16).padStart(2, "0")}`;
}
